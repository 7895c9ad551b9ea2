"""Items of the input as they are told afterwards."""

import pytest

from omnistage.server.responses.resources import resource_of


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": []}])
def test_a_message_that_only_calls_has_no_content(content: dict[str, object]) -> None:
    told = resource_of({"role": "assistant", **content})
    assert (told["type"], told["role"], told["content"]) == ("message", "assistant", [])

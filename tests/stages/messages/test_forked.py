"""Tests what a server is told of a forked process."""

import pytest

from omnistage.stages.messages.forked import Exited, Forked, decode, encode


@pytest.mark.parametrize("message", [Forked(7), Exited(0), Exited(-9)])
def test_a_message_is_read_as_it_was_written(message: Forked | Exited) -> None:
    assert decode(encode(message)) == message

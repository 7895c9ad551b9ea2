"""Tests that a request's words to a chat template never reach the calls that render it."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase
from vllm.renderers.hf import safe_apply_chat_template

from omnistage.server.tasks.chat.fields import RENDERING


@pytest.mark.parametrize(
    "call", [safe_apply_chat_template, PreTrainedTokenizerBase.apply_chat_template]
)
def test_every_argument_of_a_call_that_renders_is_refused(call: Callable[..., Any]) -> None:
    arguments = signature(call).parameters.values()
    names = {one.name for one in arguments if one.kind is not Parameter.VAR_KEYWORD}
    assert {"conversation", "tools", "tokenize"} < names
    assert names <= RENDERING

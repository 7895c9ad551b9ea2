"""What the gateway takes for "nothing is asked" are the defaults of vLLM's own fields."""

from typing import Any

import pytest

pytest.importorskip("vllm")

from pydantic import BaseModel
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest

from omnistage.server.common.fields import RequestFields
from omnistage.server.responses.schema import ResponseRequest
from omnistage.server.tasks.chat.completion_fields import CompletionRequest
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat.token_fields import TokenizeRequest
from omnistage.server.tasks.embeddings import EmbeddingRequest
from omnistage.stages.vllm.compat import ChatCompletionRequest, TokenizeChatRequest
from omnistage.stages.vllm.compat import CompletionRequest as VllmCompletionRequest

PAIRS: list[tuple[type[RequestFields], type[BaseModel]]] = [
    (ChatRequest, ChatCompletionRequest),
    (CompletionRequest, VllmCompletionRequest),
    (ResponseRequest, ResponsesRequest),
    (EmbeddingRequest, EmbeddingCompletionRequest),
    (TokenizeRequest, TokenizeChatRequest),
]
# Beside what is empty, and switches that are off, these mean the same as the default.
ALSO = {("endianness", "little"), ("suffix", "")}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__name__)
def test_a_refused_field_s_default_is_vllm_s(
    ours: type[RequestFields], theirs: type[BaseModel]
) -> None:
    names = ours.refused.keys() & theirs.model_fields.keys() - ours.model_fields.keys()
    assert names
    for name in sorted(names):
        default: Any = theirs.model_fields[name].default
        nothing = (None, *ours.refused[name])
        assert default in nothing, name
        for value in ours.refused[name]:
            is_empty = value in ([], {}) or (default is None and value is False)
            assert value == default or is_empty or (name, value) in ALSO, (name, value)

"""Bodies of requests, from fields as tests write them."""

from collections.abc import Iterable, Mapping
from typing import Any

from omnistage.server.runtime.request import GraphRequest
from omnistage.stages.messages.body import (
    AnyBody,
    Chat,
    Detokenize,
    Embed,
    GivenText,
    Prompt,
    Tokenize,
    VoiceSample,
)
from omnistage.stages.messages.to_stage import Request


def body_of(fields: Mapping[str, Any]) -> AnyBody:
    """Return the body of `tokenize`, `detokenize`, a prompt, or else a chat."""
    if "tokenize" in fields:
        return Tokenize(fields["tokenize"])
    if "detokenize" in fields:
        return Detokenize(fields["detokenize"]["tokens"])
    return Prompt(dict(fields)) if "prompt" in fields else Chat(dict(fields))


def embed_of(fields: Mapping[str, Any]) -> AnyBody:
    """Return the body of `input` with `dimensions`, or of tokens."""
    if "input" in fields:
        return Embed(fields["input"], fields.get("dimensions"))
    return body_of(fields)


def spoken_of(fields: Mapping[str, Any]) -> GivenText:
    """Return the body of a text to be spoken: `input` and what else is given."""
    reference = fields.get("reference")
    return GivenText(
        fields["input"],
        fields.get("instructions", ""),
        fields.get("language"),
        None if reference is None else VoiceSample(**reference),
        fields.get("open", False),
    )


def chat_request(name: str, outputs: Iterable[str], fields: Mapping[str, Any]) -> GraphRequest:
    """Return a chat, or another body without audio, as it enters the graph."""
    return GraphRequest(name, Request(body_of(fields), list(outputs)))


def speech_request(
    name: str, outputs: Iterable[str], seed: int | None = None, **fields: Any
) -> GraphRequest:
    """Return a text to be spoken as it enters the graph."""
    return GraphRequest(name, Request(spoken_of(fields), list(outputs), seed=seed))


def given_text(request: Request) -> GivenText:
    """Return the body of a request to speak a text."""
    assert isinstance(request.body, GivenText)
    return request.body

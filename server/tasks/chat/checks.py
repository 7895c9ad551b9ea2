"""Checks the fields of a chat with each other and with its graph; messages and media are others'.

What is left of them is a `CheckedChat`: nobody asks the chat's fields again for what it has.
"""

import json
from dataclasses import dataclass

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.common.fields import refuse
from omnistage.server.common.served import check_makes, made_by
from omnistage.server.media.audio.encoder import FORMATS
from omnistage.server.tasks.chat.fields import RENDERING
from omnistage.server.tasks.chat.grammar import check_response_format, check_structured_outputs
from omnistage.server.tasks.chat.schema import DONE, ChatRequest, Sampling, StreamOptions
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import chat_outputs

CHAT_FORMATS = tuple(name for name in FORMATS if name != "pcm")
MODALITIES = (("text",), ("audio",), ("text", "audio"))
# Of a graph that draws what it writes.
WITH_IMAGE = (("text", "image"), ("text", "audio", "image"))
# Read by the gateway; the entry stage's body has the other fields that are done.
OWN_FIELDS = frozenset(
    {
        "model",
        "messages",
        "modalities",
        "audio",
        "max_completion_tokens",
        "stage_params",
        "return_codes",
        "return_token_ids",
        "return_timeline",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "mm_processor_kwargs",
        "media_io_kwargs",
    }
)
SENT_ON = DONE - OWN_FIELDS


@dataclass(frozen=True, slots=True)
class CheckedChat:
    """Holds the outputs that a chat wants, and fields that its entry stage gets as they came."""

    outputs: tuple[str, ...]
    fields: dict[str, object]


def checked_chat(chat: ChatRequest, graph: StageGraph) -> CheckedChat:
    """Raise ApiError for fields that ask for what is not done, or that do not go together."""
    refuse(chat.model_extra or {}, chat.refused)  # the chat itself goes to no other file
    max_tokens = chat.max_completion_tokens or chat.max_tokens
    check_sampling(chat, max_tokens)
    if chat.top_logprobs and not chat.logprobs:
        raise invalid("top_logprobs", "needs logprobs to be true")
    for name in sorted(RENDERING & (chat.chat_template_kwargs or {}).keys()):
        raise unsupported(f"chat_template_kwargs.{name}")
    outputs = _outputs(chat, graph)
    fields = chat.model_dump(exclude_none=True, include=set(SENT_ON))
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    options = chat.stream_options or StreamOptions()
    return CheckedChat(outputs, {**fields, "stream": True, "stream_options": options.of_stage()})


def check_sampling(asked: Sampling, max_tokens: int | None) -> None:
    """Raise ApiError for fields that do not go together, or ask for too large a grammar."""
    if asked.stream_options is not None and not asked.stream:
        raise invalid("stream_options", "is only allowed when stream is true")
    if (asked.n or 1) > 1 and asked.temperature == 0:
        raise invalid("n", "must be 1 at temperature 0, where all answers are one")
    if max_tokens is not None and (asked.min_tokens or 0) > max_tokens:
        raise invalid("min_tokens", f"exceeds the {max_tokens} tokens allowed")
    if asked.response_format is not None:
        check_response_format(asked.response_format)
    if asked.structured_outputs is not None:
        check_structured_outputs(asked.structured_outputs)


def _outputs(chat: ChatRequest, graph: StageGraph) -> tuple[str, ...]:
    if chat.modalities is None:
        check_makes("text", graph.outputs, "text")
    wanted = {"text"} if chat.modalities is None else set(chat.modalities)
    draws = "image" in graph.outputs and "text" in graph.waits_for("image")
    made = chat_outputs(graph)
    choices: list[tuple[str, ...]] = [*MODALITIES, *(WITH_IMAGE if draws else ())]
    if wanted not in map(set, choices):
        raise invalid("modalities", f"must be {' or '.join(map(json.dumps, choices))}")
    if wanted == {"audio"}:
        wanted = {"text", "audio"}  # the words are made, and not sent
    for name in sorted(wanted):
        if name not in made:
            makes = made_by(made or graph.outputs)
            raise invalid("modalities", f"asks for {name}; this model makes {makes}")
    if chat.audio is not None and chat.audio.format not in CHAT_FORMATS:
        raise invalid("audio.format", f"must be one of {', '.join(CHAT_FORMATS)}")
    outputs = next(choice for choice in choices if set(choice) == wanted)
    if (chat.n or 1) > 1 and len(outputs) > 1:
        raise invalid("n", f"must be 1 with {' and '.join(outputs[1:])}")
    if chat.include_reasoning is False and "audio" in wanted:
        # Its tokens could not be told from the spoken ones.
        raise invalid("include_reasoning", "must be true with audio")
    return outputs

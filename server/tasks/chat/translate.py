"""Turns a chat request into one for the stages, or refuses it with the field to blame."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.server.common.served import (
    DEFAULT_VOICE,
    adapter_of,
    check_makes,
    check_model,
    made_by,
)
from omnistage.server.media.audio.encoder import FORMATS
from omnistage.server.runtime.request import GraphRequest
from omnistage.server.tasks.chat.audio_history import AudioHistory
from omnistage.server.tasks.chat.media_options import check_heard, media_options
from omnistage.server.tasks.chat.messages import checked_messages
from omnistage.server.tasks.chat.schema import DONE, ChatRequest
from omnistage.server.tasks.chat.tools import checked_tools
from omnistage.stage_configs.declared.sampling import StageParameters, with_defaults
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import chat_outputs
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.to_stage import Parameter, Request

CHAT_FORMATS = tuple(name for name in FORMATS if name != "pcm")
MODALITIES = (("text",), ("audio",), ("text", "audio"))
# Of a graph that draws what it writes.
WITH_IMAGE = (("text", "image"), ("text", "audio", "image"))
# Read here; the entry stage's body has the other fields that are done.
OWN_FIELDS = frozenset(
    {
        "model",
        "modalities",
        "audio",
        "stage_params",
        "return_codes",
        "return_token_ids",
        "return_timeline",
        "stream",
        "stream_options",
        "mm_processor_kwargs",
        "media_io_kwargs",
    }
)
SENT_ON = DONE - OWN_FIELDS - {"messages"}


@dataclass(frozen=True, slots=True)
class Translator:
    """Translates the chats of one graph."""

    graph: StageGraph
    speakers: Sequence[str]
    history: AudioHistory
    adapters: Collection[str] = ()

    def request(self, chat: ChatRequest) -> GraphRequest:
        """The request as the stages get it; raises ApiError."""
        check_model(chat.model, self.graph.served_names, self.adapters)
        chat.check()
        outputs = self._outputs(chat)
        voice = self.graph.voice_called(chat.audio.voice) if chat.audio is not None else None
        speaker = known_speaker(voice, self.speakers, "audio.voice")
        path = self.graph.path(set(outputs))
        given = checked_stage_params(chat.stage_params or {}, self.graph, path)
        has_audio = "audio" in outputs
        if chat.return_codes and not has_audio:
            raise invalid("return_codes", "needs audio among the modalities")
        return GraphRequest(
            id=f"chatcmpl-{uuid4().hex}",
            message=Request(
                Chat(self._fields(chat, given.get(self.graph.entry_of("text"), {}))),
                list(outputs),
                speaker=speaker if has_audio else None,
                stage_params=stage_params_of(self.graph, path, given),
                seed=chat.seed,
                return_codes=bool(chat.return_codes) and has_audio,
            ),
        )

    def _outputs(self, chat: ChatRequest) -> tuple[str, ...]:
        if chat.modalities is None:
            check_makes("text", self.graph.outputs, "text")
        wanted = {"text"} if chat.modalities is None else set(chat.modalities)
        draws = "image" in self.graph.outputs and "text" in self.graph.waits_for("image")
        made = chat_outputs(self.graph)
        choices: list[tuple[str, ...]] = [*MODALITIES, *(WITH_IMAGE if draws else ())]
        if wanted not in map(set, choices):
            raise invalid("modalities", f"must be {' or '.join(map(json.dumps, choices))}")
        if wanted == {"audio"}:
            wanted = {"text", "audio"}  # the words are made, and not sent
        for name in sorted(wanted):
            if name not in made:
                makes = made_by(made or self.graph.outputs)
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

    def _fields(self, chat: ChatRequest, own: Mapping[str, Parameter]) -> dict[str, object]:
        """The entry stage's chat body: vLLM's fields, its own stage parameters merged over.

        Its defaults hold where neither says anything.
        """
        body = chat.model_dump(exclude_none=True, include=set(SENT_ON))
        body["messages"] = checked_messages(chat.messages, self.history, self.graph.more_roles)
        body |= media_options(chat.mm_processor_kwargs, chat.media_io_kwargs, chat.messages)
        check_heard(body, self.graph)
        if chat.tools is not None or chat.tool_choice is not None:
            body["tools"], body["tool_choice"] = checked_tools(chat.tools, chat.tool_choice)
        max_tokens = body.pop("max_tokens", None)
        body["max_tokens"] = body.pop("max_completion_tokens", max_tokens)
        body = {name: value for name, value in {**body, **own}.items() if value is not None}
        body = with_defaults(entry_defaults(self.graph), body)
        if "max_tokens" in body:
            body["max_completion_tokens"] = body.pop("max_tokens")
        body |= adapter_of(chat.model, self.graph.served_names)
        return {**body, "stream": True, "stream_options": chat.usage_options}


def entry_defaults(graph: StageGraph) -> dict[str, Parameter]:
    """Returns what a graph's entry stage samples with where a request does not say it."""
    return graph.stages[graph.entry_of("text")].default_sampling_params.given


def stage_params_of(
    graph: StageGraph, path: Collection[str], given: Mapping[str, Mapping[str, Parameter]]
) -> dict[str, dict[str, Parameter]]:
    """The sampling of the stages of a request's path: what it says, and a stage's defaults."""
    merged = {
        name: with_defaults(graph.stages[name].default_sampling_params.given, given.get(name, {}))
        for name in path
    }
    return {name: parameters for name, parameters in merged.items() if parameters}


def known_speaker(voice: str | None, speakers: Sequence[str], param: str) -> str | None:
    """Returns the speaker with this name in any case, None for the model's own; raises ApiError."""
    if voice is None:
        return None
    for speaker in speakers:
        if speaker.lower() == voice.lower():
            return speaker
    if voice.lower() == DEFAULT_VOICE:
        return None
    if not speakers:  # stages still load, or have no names to check
        return voice
    raise invalid(param, f"{voice!r} is unknown; allowed: {', '.join([*speakers, DEFAULT_VOICE])}")


def checked_stage_params(
    given: Mapping[str, Mapping[str, object]], graph: StageGraph, path_of_request: Collection[str]
) -> dict[str, dict[str, Parameter]]:
    """The sampling of each stage that has any and that the request goes through; or ApiError."""
    checked = {}
    for stage, parameters in given.items():
        path = f"stage_params.{stage}"
        _check_known(path, stage, graph.stages)
        if not KINDS[graph.stages[stage].kind].samples:
            raise invalid(path, "is refused: this stage samples nothing")
        if stage not in path_of_request:
            raise invalid(path, "has no effect: the answer does not need this stage")
        for key in parameters:
            _check_known(f"{path}.{key}", key, StageParameters.model_fields)
        sampling = parse(StageParameters, parameters, path, "{} is refused: {}.")
        checked[stage] = sampling.model_dump(exclude_none=True)
    return checked


def _check_known(path: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise invalid(path, f"is unknown; allowed: {', '.join(sorted(known))}")

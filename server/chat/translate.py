"""Turns a chat request into a Request for the stages, or refuses it with the field to blame."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from omnistage.server.audio.encoder import FORMATS
from omnistage.server.chat.audio_history import AudioHistory
from omnistage.server.chat.messages import checked_messages
from omnistage.server.chat.schema import DONE, ChatRequest, StageParameters
from omnistage.server.chat.tools import checked_tools
from omnistage.server.errors import invalid
from omnistage.server.http.fields import parse
from omnistage.server.http.served import adapter_of, check_model
from omnistage.server.runtime.request import Request
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.kinds import KINDS
from omnistage.stages.messages.to_stage import Parameter

CHAT_FORMATS = tuple(name for name in FORMATS if name != "pcm")
MODALITIES = ({"text"}, {"text", "audio"})
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

    def request(self, chat: ChatRequest) -> Request:
        """The request as the stages get it; raises ApiError."""
        check_model(chat.model, self.graph.model, self.adapters)
        chat.check()
        outputs = self._outputs(chat)
        voice = chat.audio.voice if chat.audio is not None else None
        speaker = known_speaker(voice, self.speakers, "audio.voice")
        path = self.graph.path(set(outputs))
        stage_params = checked_stage_params(chat.stage_params or {}, self.graph, path)
        has_audio = "audio" in outputs
        if chat.return_codes and not has_audio:
            raise invalid("return_codes", "needs audio among the modalities")
        return Request(
            id=f"chatcmpl-{uuid4().hex}",
            outputs=outputs,
            body=self._body(chat, stage_params.get(self.graph.entry, {})),
            speaker=speaker if has_audio else None,
            stage_params=stage_params,
            seed=chat.seed,
            return_codes=bool(chat.return_codes) and has_audio,
        )

    def _outputs(self, chat: ChatRequest) -> tuple[str, ...]:
        wanted = {"text"} if chat.modalities is None else set(chat.modalities)
        if wanted not in MODALITIES:
            raise invalid("modalities", 'must be ["text"] or ["text", "audio"]')
        for name in sorted(wanted):
            if name not in self.graph.outputs:
                makes = ", ".join(sorted(self.graph.outputs))
                raise invalid("modalities", f"asks for {name}; this model makes {makes}")
        if chat.audio is not None and chat.audio.format not in CHAT_FORMATS:
            raise invalid("audio.format", f"must be one of {', '.join(CHAT_FORMATS)}")
        if "audio" not in wanted:
            return ("text",)
        if (chat.n or 1) > 1:
            raise invalid("n", "must be 1 with audio")
        if chat.include_reasoning is False:  # its tokens could not be told from the spoken ones
            raise invalid("include_reasoning", "must be true with audio")
        return ("text", "audio")

    def _body(self, chat: ChatRequest, own: Mapping[str, Parameter]) -> dict[str, Any]:
        """The entry stage's chat body: vLLM's fields, its own stage parameters merged over."""
        body = chat.model_dump(exclude_none=True, include=set(SENT_ON))
        body["messages"] = checked_messages(chat.messages, self.history)
        if chat.tools is not None or chat.tool_choice is not None:
            body["tools"], body["tool_choice"] = checked_tools(chat.tools, chat.tool_choice)
        body |= {name: value for name, value in own.items() if name != "max_tokens"}
        max_tokens = own.get("max_tokens", body.pop("max_tokens", None))
        if "max_tokens" in own or "max_completion_tokens" not in body:
            body["max_completion_tokens"] = max_tokens
        body = {name: value for name, value in body.items() if value is not None}
        body |= adapter_of(chat.model, self.graph.model)
        return {**body, "stream": True, "stream_options": {"include_usage": True}}


def known_speaker(voice: str | None, speakers: Sequence[str], param: str) -> str | None:
    """The speaker with this name in any case; ApiError if there are others only."""
    if voice is None or not speakers:  # stages still load, or have no names to check
        return voice
    for speaker in speakers:
        if speaker.lower() == voice.lower():
            return speaker
    raise invalid(param, f"{voice!r} is unknown; allowed: {', '.join(speakers)}")


def checked_stage_params(
    given: Mapping[str, Mapping[str, Any]], graph: StageGraph, path_of_request: Collection[str]
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

"""Chats: from the fields of a body to what the stages make."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from omnistage.server.common.errors import invalid
from omnistage.server.common.served import (
    adapter_of,
    check_makes,
    check_model,
    known_speaker,
    made_by,
)
from omnistage.server.media.audio.encoder import FORMATS
from omnistage.server.runtime.request import GraphRequest, Outputs
from omnistage.server.tasks.chat.audio_history import AudioHistory
from omnistage.server.tasks.chat.chunks import AnswerChunks, AnswerHead, SpeechChunks, TextChunks
from omnistage.server.tasks.chat.media_options import check_heard, media_options
from omnistage.server.tasks.chat.messages import checked_messages, media_of
from omnistage.server.tasks.chat.schema import DONE, ChatRequest
from omnistage.server.tasks.chat.stage_params import (
    checked_stage_params,
    entry_defaults,
    stage_params_of,
)
from omnistage.server.tasks.chat.tools import checked_tools
from omnistage.server.tasks.images.mixed import FIELDS, Wish
from omnistage.server.tasks.service import Caller, Service, send
from omnistage.stage_configs.declared.sampling import with_defaults
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
class RunningChat:
    """A chat that was sent to the stages; closing `outputs` cancels it."""

    chat: ChatRequest
    request: GraphRequest
    model: str  # its name in answers
    wish: Wish | None  # the image that a stage draws of the words, if one does
    outputs: Outputs

    @property
    def has_audio(self) -> bool:
        """Returns whether the answer is spoken."""
        return "audio" in self.request.message.outputs

    @property
    def unknown(self) -> list[str]:
        """Fields without effect; those of an image have one where there is an image."""
        names = self.chat.unknown
        return names if self.wish is None else [name for name in names if name not in FIELDS]

    def chunks(self) -> AnswerChunks:
        """Return a maker of OpenAI's chunks of the words and the speech."""
        head = AnswerHead(self.request.id, self.model, bool(self.chat.return_token_ids))
        if self.has_audio:
            return SpeechChunks(head, self.request.message.return_codes, self.chat.has_words)
        return TextChunks(head)


async def run_chat(
    service: Service,
    chat: ChatRequest,
    caller: Caller,
    request_id: str | None = None,
    keeps_rows: bool = False,
) -> RunningChat:
    """Check a chat of words or speech, load its media and send it; raises ApiError.

    The request is on its way to the stages when this returns. It ends when its outputs are closed,
    or with `caller.until`. An answer of images alone is no chat of words: `wants_images`.
    `keeps_rows`: a spoken chat that goes on with this one's prompt will find all of it read.
    """
    request, wish = await caller.compute(lambda: _translated(service, chat))
    if request_id is not None:
        request = replace(request, id=request_id)
    if keeps_rows:
        request = request.changed(keeps_rows=True)
    request, outputs = await send(service, request, caller, media_of(request.message.fields))
    model = request.message.fields.get("model", service.runtime.graph.served_name)
    return RunningChat(chat, request, model, wish, outputs)


def _translated(service: Service, chat: ChatRequest) -> tuple[GraphRequest, Wish | None]:
    graph, fleet = service.runtime.graph, service.runtime.fleet
    adapters = [lora.name for lora in fleet.loras]
    request = Translator(graph, fleet.voices, service.history, adapters).request(chat)
    if "image" not in request.message.outputs:
        return request, None
    wish = Wish.of(chat)
    return request.changed(image=wish.body), wish


def wants_images(chat: ChatRequest, graph: StageGraph) -> bool:
    """Returns whether nothing but images is asked for; where the graph has no text, by saying
    nothing.
    """
    if chat.modalities is None:
        return "image" in graph.outputs and "text" not in graph.outputs
    if "image" not in chat.modalities or "image" not in graph.outputs:
        return "image" in chat.modalities
    is_beside_text = "text" in chat.modalities and graph.waits_for("image")
    return not (graph.writers("image") or is_beside_text)


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

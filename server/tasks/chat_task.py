"""Chats: from the fields of a body to what the stages make."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from omnistage.server.common.errors import invalid
from omnistage.server.common.served import adapter_of, check_model, known_speaker
from omnistage.server.media.medium import Medium
from omnistage.server.runtime.request import GraphRequest, Outputs
from omnistage.server.tasks.chat.checks import checked_chat
from omnistage.server.tasks.chat.chunks import AnswerChunks, AnswerHead, SpeechChunks, TextChunks
from omnistage.server.tasks.chat.media_options import check_heard, media_of, media_options
from omnistage.server.tasks.chat.messages import checked_messages
from omnistage.server.tasks.chat.schema import ChatRequest
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
from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.to_stage import Parameter, Request


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
    translated = await caller.compute(lambda: translate_chat(service, chat))
    request = translated.request
    if request_id is not None:
        request = replace(request, id=request_id)
    if keeps_rows:
        request = request.changed(keeps_rows=True)
    request, outputs = await send(service, request, caller, translated.media)
    model = request.message.fields.get("model", service.runtime.graph.served_name)
    return RunningChat(chat, request, model, translated.wish, outputs)


def wants_images(modalities: Collection[str] | None, graph: StageGraph) -> bool:
    """Returns whether nothing but images is asked for; where the graph has no text, by saying
    nothing.
    """
    if modalities is None:
        return "image" in graph.outputs and "text" not in graph.outputs
    if "image" not in modalities or "image" not in graph.outputs:
        return "image" in modalities
    is_beside_text = "text" in modalities and graph.waits_for("image")
    return not (graph.writers("image") or is_beside_text)


@dataclass(frozen=True, slots=True)
class TranslatedChat:
    """A chat as the stages get it, with the media that are loaded before it is sent."""

    request: GraphRequest
    media: Sequence[Medium]
    wish: Wish | None  # the image that a stage draws of the words, if one does


def translate_chat(service: Service, chat: ChatRequest) -> TranslatedChat:
    """Check each field of a chat, and make the request of it; raises ApiError."""
    graph, fleet = service.runtime.graph, service.runtime.fleet
    check_model(chat.model, graph.served_names, [lora.name for lora in fleet.loras])
    checked = checked_chat(chat, graph)
    has_audio = "audio" in checked.outputs
    voice = graph.voice_called(chat.audio.voice) if chat.audio is not None else None
    speaker = known_speaker(voice, fleet.voices, "audio.voice")
    path = graph.path(set(checked.outputs))
    sampling = checked_stage_params(chat.stage_params or {}, graph, path)
    if chat.return_codes and not has_audio:
        raise invalid("return_codes", "needs audio among the modalities")
    body = {
        **checked.fields,
        "messages": checked_messages(chat.messages, service.history, graph.more_roles),
        **media_options(chat.mm_processor_kwargs, chat.media_io_kwargs, chat.messages),
    }
    check_heard(body, graph)
    media = media_of(body)
    tools, choice = checked_tools(chat.tools, chat.tool_choice)
    if tools is not None:
        body["tools"] = tools
    if choice is not None:
        body["tool_choice"] = choice
    body = _with_sampling(body, sampling.get(graph.entry_of("text"), {}), graph)
    wish = Wish.of(chat) if "image" in checked.outputs else None
    message = Request(
        Chat(body | adapter_of(chat.model, graph.served_names)),
        list(checked.outputs),
        image=None if wish is None else wish.body,
        speaker=speaker if has_audio else None,
        stage_params=stage_params_of(graph, path, sampling),
        seed=chat.seed,
        return_codes=bool(chat.return_codes),
    )
    return TranslatedChat(GraphRequest(f"chatcmpl-{uuid4().hex}", message), media, wish)


def _with_sampling(asked: JsonMap, own: Mapping[str, Parameter], graph: StageGraph) -> Json:
    """The entry stage's body with its own parameters over the chat's, and its defaults below."""
    body = with_defaults(entry_defaults(graph), {**asked, **own})
    if "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")
    return body

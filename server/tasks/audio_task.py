"""Sounds and music of words, and of audio to start from."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import Field

from omnistage.server.common.errors import ApiError, fields_named
from omnistage.server.common.served import check_makes, check_model
from omnistage.server.common.trace import current_trace
from omnistage.server.media.audio.track import Track
from omnistage.server.media.given import GivenMedia
from omnistage.server.runtime.request import AudioOutput, GraphRequest, Outputs
from omnistage.server.tasks.chat.schema import Loras
from omnistage.server.tasks.images.extra import ExtraFields
from omnistage.server.tasks.images.schema import MAX_PROMPT, Scale
from omnistage.server.tasks.pieces import Answer, Piece, stamps_of
from omnistage.server.tasks.recordings import audio_of
from omnistage.server.tasks.service import Caller, Service
from omnistage.server.tasks.videos.media import MediaField, Source, check_places, given_media
from omnistage.stage_configs.declared.sampling import Count, Number, Seed
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import generates_audio, reads_out
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_stage import Request

AUDIO_ONLY = ("audio",)  # the outputs of such a request
MAX_SECONDS = 600
DEFAULT_FORMAT = "wav"
# In a form these are words; the others are JSON's numbers, booleans and objects, written out.
WORDS = frozenset({"input", "model", "negative_prompt", "lyrics", "response_format"})
MEDIA: Mapping[str, MediaField] = {
    name: MediaField(name, "audio") for name in ("audio", "reference_audio")
}
NOT_SENT = frozenset({"input", "model", "seed", "response_format", "extra"})

Words = Annotated[str, Field(max_length=MAX_PROMPT)]


class GeneratedAudioRequest(ExtraFields):
    """vllm-omni's fields, and below them ours; the pipeline refuses what it does not take."""

    ignored = frozenset({"user"})

    input: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    model: str | None = None
    audio_length: Annotated[Number, Field(gt=0, le=MAX_SECONDS)] | None = None
    audio_start: Annotated[Number, Field(ge=0, le=MAX_SECONDS)] | None = None
    negative_prompt: Words | None = None
    guidance_scale: Scale | None = None
    num_inference_steps: Annotated[Count, Field(ge=1, le=1000)] | None = None
    seed: Seed | None = None
    response_format: Literal["wav", "flac", "mp3", "opus", "aac", "pcm"] | None = None
    lyrics: Words | None = None
    lora: Loras | None = None

    def to_request(self, given: GivenMedia) -> GraphRequest:
        """Return the request that the stages get."""
        fields = self.model_dump(exclude={*NOT_SENT, *(self.model_extra or {})})
        fields |= {"prompt": self.input, **({"extra": self.extra} if self.extra else {})}
        message = Request(Draw(fields, given.about), list(AUDIO_ONLY), seed=self.seed)
        media = given if given.has_pieces else None
        return GraphRequest(f"audio-{uuid4().hex}", message, given.tensors, media=media)


@dataclass(frozen=True, slots=True)
class RunningAudio:
    """A request for audio that was sent to the stages."""

    request: GraphRequest
    outputs: Outputs

    async def made(self) -> Track:
        """Collect the audio; raises ApiError."""
        with fields_named(name_of):
            async with aclosing(self.outputs) as outputs:
                sounds = [one async for one in outputs if isinstance(one, AudioOutput)]
        track = Track.of(sounds)
        assert track is not None, "an answer of audio ends with audio"
        return track


def name_of(field: str) -> str:
    """Return what clients call a field of the stages."""
    return "input" if field == "prompt" else field


def check_audio(graph: StageGraph, fields: GeneratedAudioRequest) -> None:
    """Raise ApiError for a request of another model, or to a graph that generates no audio."""
    check_model(fields.model, graph.served_names)
    check_makes("audio", graph.outputs, "audio")
    if not generates_audio(graph):
        way = "POST /v1/audio/speech" if reads_out(graph) else "ask it in a chat"
        message = f"This model speaks, and makes no audio of a description: {way}."
        raise ApiError(400, message, code="unsupported_model")


async def run_audio(
    service: Service, fields: GeneratedAudioRequest, caller: Caller, sources: Sequence[Source] = ()
) -> RunningAudio:
    """Check a request for audio, load its media and send it; raises ApiError."""
    graph, fleet = service.runtime.graph, service.runtime.fleet
    check_audio(graph, fields)
    fields.check()
    reading = fleet.one_of(graph.outputs["audio"]).record.reading
    check_places([one.field for one in sources], reading)
    until = caller.until
    ticket = until.enter_context(service.runtime.flights.admit(AUDIO_ONLY))
    given = GivenMedia(())
    if sources:
        given = await caller.wait(given_media(sources, service.media, until))
    request = fields.to_request(given)
    with fields_named(name_of):
        return RunningAudio(request, ticket.run(request))


async def answer_audio(
    service: Service, fields: GeneratedAudioRequest, caller: Caller, sources: Sequence[Source]
) -> AsyncGenerator[Piece, None]:
    """Yield the `Answer` with the audio; raises ApiError."""
    running = await run_audio(service, fields, caller, sources)
    track = await running.made()
    timeline = stamps_of(current_trace().timeline.to_list())
    yield Answer(running.request.id, audio=audio_of(track.pcm, track.samples), timeline=timeline)

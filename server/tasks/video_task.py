"""Videos of words, and of media beside them."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

from omnistage.server.common.errors import fields_named
from omnistage.server.common.served import check_model
from omnistage.server.media.given import GivenFile, GivenMedia, read_given
from omnistage.server.media.mp4 import Track, encode
from omnistage.server.runtime.request import AudioOutput, GraphRequest, ImageOutput, Outputs
from omnistage.server.tasks.image_task import check_draws
from omnistage.server.tasks.service import Caller, Service
from omnistage.server.tasks.videos.media import Source, fetched
from omnistage.server.tasks.videos.schema import VideoEditRequest
from omnistage.stage_configs.work import WorkBound
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_stage import Request

VIDEO_ONLY = ("video",)  # the outputs of such a request
OnStep = Callable[[int, int], None]  # called with the number of a step, and of all


@dataclass(frozen=True, slots=True)
class MadeVideo:
    """The frames of a video, how many are shown a second, and its audio if it has any."""

    frames: Sequence[ImageOutput]
    fps: float
    track: Track | None = None

    @property
    def seconds(self) -> float:
        """Returns how long it lasts."""
        return len(self.frames) / self.fps

    def to_mp4(self) -> bytes:
        """Return the video as a file; may take a while."""
        return encode(self.frames, self.fps, self.track)


@dataclass(frozen=True, slots=True)
class RunningVideo:
    """A video request that was sent to the stages."""

    request: GraphRequest
    outputs: Outputs
    rate: float
    is_rate_given: bool

    async def made(self, on_step: OnStep = lambda step, num_steps: None) -> MadeVideo:
        """Collect the frames, and the audio that follows them; raises ApiError."""
        frames, sounds = [], []
        async with aclosing(self.outputs) as outputs:
            async for one in outputs:
                if isinstance(one, ImageOutput):
                    frames.append(one) if one.pixels else on_step(one.step, one.num_steps)
                elif isinstance(one, AudioOutput):
                    sounds.append(one)
        fps = self.rate if self.is_rate_given else frames[0].fps or self.rate
        return MadeVideo(frames, fps, Track.of(sounds))


def video_work(service: Service) -> WorkBound:
    """Return what the stage that makes videos says of its work."""
    fleet, graph = service.runtime.fleet, service.runtime.graph
    return fleet.one_of(graph.outputs["video"]).record.work


def check_video(service: Service, fields: VideoEditRequest) -> None:
    """Raise ApiError for a request of another model, or to a server that makes no videos."""
    graph = service.runtime.graph
    check_model(fields.model, graph.served_names)
    check_draws(graph, "video", "videos")


def video_request(service: Service, fields: VideoEditRequest, given: GivenMedia) -> GraphRequest:
    """Return the request that the stages get; raises ApiError."""
    body = Draw(fields.to_fields(video_work(service)), given.about)
    message = Request(body, list(VIDEO_ONLY), seed=fields.seed)
    media = given if given.has_pieces else None
    return GraphRequest(f"video-{uuid4().hex}", message, given.tensors, media=media)


async def run_video(
    service: Service,
    fields: VideoEditRequest,
    caller: Caller,
    sources: Sequence[Source] = (),
) -> RunningVideo:
    """Check a request for a video, load its media and send it; raises ApiError."""
    check_video(service, fields)
    fields.to_fields(video_work(service))  # refuses fields that do not go together before all else
    until = caller.until
    ticket = until.enter_context(service.runtime.flights.admit(VIDEO_ONLY))
    given = GivenMedia(())
    if sources:
        given = await caller.wait(_given(service, sources, caller))
    request = video_request(service, fields, given)
    rate = fields.rate(video_work(service))
    with fields_named(fields.name_of):
        return RunningVideo(request, ticket.run(request), rate, fields.fps is not None)


async def _given(service: Service, sources: Sequence[Source], caller: Caller) -> GivenMedia:
    files: list[GivenFile] = await fetched(sources, service.media)
    return await read_given(files, service.media.room, caller.until)

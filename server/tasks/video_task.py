"""Videos of words, and of media beside them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from uuid import uuid4

import numpy as np

from omnistage.server.common.errors import fields_named
from omnistage.server.common.served import check_model
from omnistage.server.common.trace import current_trace
from omnistage.server.media.audio.track import Track
from omnistage.server.media.given import GivenMedia
from omnistage.server.media.video.mp4 import encode
from omnistage.server.runtime.request import AudioOutput, GraphRequest, ImageOutput, Outputs
from omnistage.server.runtime.stage_record import StageRecord
from omnistage.server.tasks.image_task import check_draws
from omnistage.server.tasks.pieces import Answer, Piece, Progress, stamps_of
from omnistage.server.tasks.recordings import Video, audio_of, pixels_of
from omnistage.server.tasks.service import Caller, Service
from omnistage.server.tasks.videos.media import Source, check_places, given_media
from omnistage.server.tasks.videos.schema import MAX_FPS, MIN_FPS, VideoEditRequest
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

    def to_mp4(self) -> bytes:
        """Return the video as a file; may take a while."""
        return encode(self.frames, self.fps, self.track)

    def to_piece(self) -> Video:
        """Return the video with its frames as an array; may take a while."""
        track = self.track
        audio = None if track is None else audio_of(track.pcm, track.samples)
        return Video(np.stack([pixels_of(one) for one in self.frames]), self.fps, audio)


@dataclass(frozen=True, slots=True)
class RunningVideo:
    """A video request that was sent to the stages."""

    request: GraphRequest
    outputs: Outputs
    rate: float
    is_rate_given: bool

    async def made(self, on_step: OnStep = lambda step, num_steps: None) -> MadeVideo:
        """Collect the frames, and the audio that follows them; raises ApiError."""
        async with aclosing(self.steps()) as steps:
            async for one in steps:
                if isinstance(one, MadeVideo):
                    return one
                on_step(one.step, one.num_steps)
        raise AssertionError("every request ends with its video or raises")

    async def steps(self) -> AsyncGenerator[Progress | MadeVideo, None]:
        """Yield steps as they are taken, and the video last; raises ApiError."""
        frames, sounds = [], []
        async with aclosing(self.outputs) as outputs:
            async for one in outputs:
                if isinstance(one, AudioOutput):
                    sounds.append(one)
                elif isinstance(one, ImageOutput) and one.pixels:
                    frames.append(one)
                elif isinstance(one, ImageOutput):
                    yield Progress(one.step, one.num_steps, one.stage)
        fps = self.rate if self.is_rate_given else frames[0].fps or self.rate
        yield MadeVideo(frames, fps, Track.of(sounds))


def video_stage(service: Service) -> StageRecord:
    """Return what the stage that makes videos says of itself."""
    fleet, graph = service.runtime.fleet, service.runtime.graph
    return fleet.one_of(graph.outputs["video"]).record


def check_makes_videos(service: Service, model: str | None) -> None:
    """Raise ApiError for a request of another model, or to a server that makes no videos."""
    graph = service.runtime.graph
    check_model(model, graph.served_names)
    check_draws(graph, "video", "videos")


def check_video(service: Service, fields: VideoEditRequest, media: Collection[str]) -> None:
    """Raise ApiError for a request that the server does not serve, before its media are read.

    `media`: the fields of its media, as stages call them.
    """
    check_makes_videos(service, fields.model)
    stage = video_stage(service)
    fields.to_fields(stage.work)  # refuses fields that do not go together
    check_places(media, stage.reading)


@dataclass(frozen=True, slots=True)
class VideoPlan:
    """A request for a video, its media, and the frames per second that are asked for.

    `rate`: of a video that it changes or goes on with; None: the client's, or the pipeline's.
    """

    fields: VideoEditRequest
    given: GivenMedia
    stage: StageRecord
    rate: float | None = None

    @property
    def fps(self) -> float:
        """Returns the frames per second of the video, unless its pipeline makes others."""
        return self.fields.rate(self._work)

    @property
    def is_rate_given(self) -> bool:
        """Returns whether the client, or its video, says how many there are."""
        return self.fields.fps is not None or self._given_rate is not None

    def request(self) -> GraphRequest:
        """Return the request that the stages get; raises ApiError.

        A video that is changed says how many frames there are, unless a field does.
        """
        sent = self.fields.to_fields(self._work)
        counted = self.given.num_frames(self.stage.reading.counted)
        sent["num_frames"] = sent["num_frames"] or counted
        sent["fps"] = sent["fps"] or self._given_rate
        message = Request(Draw(sent, self.given.about), list(VIDEO_ONLY), seed=self.fields.seed)
        media = self.given if self.given.has_pieces else None
        return GraphRequest(f"video-{uuid4().hex}", message, self.given.tensors, media=media)

    @property
    def _given_rate(self) -> float | None:
        rate = self.rate or self.given.rate("video")
        return rate if MIN_FPS <= rate <= MAX_FPS else None

    @property
    def _work(self) -> WorkBound:
        work = self.stage.work
        return work if self._given_rate is None else replace(work, fps=self._given_rate)


async def run_video(
    service: Service,
    fields: VideoEditRequest,
    caller: Caller,
    sources: Sequence[Source] = (),
    rate: float | None = None,
) -> RunningVideo:
    """Check a request for a video, load its media and send it; raises ApiError."""
    check_video(service, fields, [one.field for one in sources])
    until = caller.until
    ticket = until.enter_context(service.runtime.flights.admit(VIDEO_ONLY))
    given = GivenMedia(())
    if sources:
        given = await caller.wait(given_media(sources, service.media, until))
    plan = VideoPlan(fields, given, video_stage(service), rate)
    request = plan.request()
    with fields_named(fields.name_of):
        return RunningVideo(request, ticket.run(request), plan.fps, plan.is_rate_given)


async def answer_video(
    service: Service, fields: VideoEditRequest, caller: Caller, sources: Sequence[Source]
) -> AsyncGenerator[Piece, None]:
    """Yield steps as they are taken, and the `Answer` with the video last; raises ApiError."""
    running = await run_video(service, fields, caller, sources)
    async with aclosing(running.steps()) as steps:
        async for one in steps:
            if isinstance(one, Progress):
                yield one
            else:
                video = await asyncio.to_thread(one.to_piece)
                timeline = stamps_of(current_trace().timeline.to_list())
                yield Answer(running.request.id, video=video, timeline=timeline)

"""Transcripts of what the user said, one of each item: beside the answers, or before them."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field

from omnistage.server.common.deadline import due_at
from omnistage.server.common.errors import ApiError, internal_error
from omnistage.server.http.sse import ClientTooSlow
from omnistage.server.realtime.audio_settings import Transcription
from omnistage.server.realtime.common import Common
from omnistage.server.realtime.items import Item
from omnistage.server.realtime.voice.formats import UserAudio
from omnistage.server.tasks.service import LocalCaller
from omnistage.server.tasks.transcription import run_transcription
from omnistage.server.tasks.transcripts.transcription_fields import TranscriptionRequest
from omnistage.stage_configs.json_types import Json

logger = logging.getLogger(__name__)

MAX_WAITING = 8
EVENT = "conversation.item.input_audio_transcription"


def _future() -> "asyncio.Future[ApiError | None]":
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True)
class TranscriptionJob:
    """An item to be transcribed, after an answer has begun if there is one.

    `is_told`: its client gets the transcript.
    """

    item: Item
    settings: Transcription
    has_logprobs: bool
    after: asyncio.Event | None
    is_told: bool = True
    done: asyncio.Future[ApiError | None] = field(default_factory=_future)


class Transcripts:
    """Transcribes one item of a session after the other."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._waiting: deque[TranscriptionJob] = deque()
        self._running: asyncio.Task[None] | None = None
        self._jobs: dict[str, TranscriptionJob] = {}  # that have not ended, by their items

    def add(self, job: TranscriptionJob) -> None:
        """Transcribe an item; it fails at once if too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            message = f"More than {MAX_WAITING} items wait to be transcribed."
            self._end(job, ApiError(429, message, code="too_many_transcripts"))
            return
        self._begin(job)

    async def write_down(self, items: Iterable[Item]) -> None:
        """Return once all that was said in items is there in words; raises ApiError."""
        for item in items:
            if item.sound is None or item.content[0].transcript is not None:
                continue
            job = self._jobs.get(item.id)
            if job is None:
                job = TranscriptionJob(item, Transcription(), False, None, is_told=False)
                self._begin(job)
            error = await asyncio.shield(job.done)
            if error is not None:
                raise error

    def _begin(self, job: TranscriptionJob) -> None:
        self._jobs[job.item.id] = job
        self._waiting.append(job)
        if self._running is None or self._running.done():
            self._running = self._common.tasks.begin(self._run_all())

    async def _run_all(self) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            if job.after is not None:
                await job.after.wait()
            try:
                await self._run(job)
            except ClientTooSlow:
                raise
            except ApiError as error:
                self._end(job, error)
            except Exception:
                logger.exception("a transcript failed")
                self._end(job, internal_error())
            else:
                self._end(job, None)

    async def _run(self, job: TranscriptionJob) -> None:
        part = job.item.content[0]
        assert part.sound is not None
        with self._common.followed(self._common.new_answer()) as state, ExitStack() as until:
            caller = LocalCaller(until, self._common.flow.threads)
            sound = part.sound
            fields = await caller.compute(lambda: _fields(sound, job))
            async with due_at(state.due_at):
                running = await run_transcription(self._common.flow.service, fields, caller)
                async with aclosing(running.events()) as events:
                    async for event in events:
                        del event["type"]
                        self._tell_of(job, "delta", event)
        whole = running.transcript.done
        part.transcript = whole.pop("text")
        del whole["type"]
        self._tell_of(job, "completed", {"transcript": part.transcript, **whole})

    def _end(self, job: TranscriptionJob, error: ApiError | None) -> None:
        """Tell of a failure, and let go on who waits for the words."""
        self._jobs.pop(job.item.id, None)
        job.done.set_result(error)
        if error is not None:
            told = {"type": error.type, "code": error.code or error.type, "message": error.message}
            self._tell_of(job, "failed", {"error": told})

    def _tell_of(self, job: TranscriptionJob, step: str, more: Json) -> None:
        if job.is_told and job.item.id in self._common.conversation:
            about = {"item_id": job.item.id, "content_index": 0}
            self._common.tell({"type": f"{EVENT}.{step}", **about, **more})


def _fields(sound: UserAudio, job: TranscriptionJob) -> TranscriptionRequest:
    """Return what a transcription of an item is; takes a while."""
    return TranscriptionRequest(
        file=sound.to_wav(),
        language=job.settings.language,
        prompt=job.settings.prompt,
        include=["logprobs"] if job.has_logprobs else None,
    )

"""Speaks to /v1/realtime as a microphone that never stops, and times the events that come."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from omnistage.bench.audio import decoded_bytes
from omnistage.bench.realtime.report import TurnSample
from omnistage.bench.realtime.voice import RATE_HZ, Samples, UserTurn, silence

PIECE_S = 0.02
INTERRUPTION_S = 0.5  # of an answer are heard before a user speaks into it
BYTES_A_S = 2 * RATE_HZ
QUIET = silence(PIECE_S)

Event = Mapping[str, Any]


class SessionFailed(Exception):
    """The session has ended, or an event of it was refused."""


class Microphone:
    """Sends what is spoken, and silence otherwise, as fast as it is heard."""

    def __init__(self, ws: ClientConnection) -> None:
        self._ws = ws
        self._left = QUIET[:0]
        self._spoken: asyncio.Future[float] | None = None

    async def speak(self, samples: Samples) -> float:
        """Return the loop's time at which the last sample was sent."""
        self._spoken = asyncio.get_running_loop().create_future()
        self._left = samples
        return await self._spoken

    async def run(self) -> None:
        """Send for ever."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s += PIECE_S
            await asyncio.sleep(due_s - loop.time())
            piece, self._left = self._left[: len(QUIET)], self._left[len(QUIET) :]
            heard = QUIET.copy()
            heard[: len(piece)] = piece
            audio = base64.b64encode(heard.astype("<i2").tobytes()).decode()
            await self._ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            if self._spoken is not None and not len(self._left):
                self._spoken.set_result(loop.time())
                self._spoken = None


class TurnProgress:
    """A turn that is spoken and answered."""

    def __init__(self, sample: TurnSample) -> None:
        self.sample = sample
        self.has_sound = asyncio.Event()
        self.is_done = asyncio.Event()
        self.item_id: str | None = None  # of its answer


class BenchSession:
    """Speaks its turns one after the other, and records when what came."""

    def __init__(self, ws: ClientConnection, number: int, start_s: float) -> None:
        self.samples: list[TurnSample] = []
        self._ws = ws
        self._number = number
        self._start_s = start_s
        self._microphone = Microphone(ws)
        self._turn: TurnProgress | None = None  # that is spoken, or was last
        self._of: dict[str, TurnProgress] = {}  # by response
        self._begun: str | None = None  # the response that is under way

    async def run(self, settings: Event, turns: Sequence[UserTurn], timeout_s: float) -> None:
        """Speak all turns; what fails is the error of its turn, and ends the session."""
        try:
            await self._send("session.update", session=settings)
            async with asyncio.TaskGroup() as group:
                others = [
                    group.create_task(self._read()),
                    group.create_task(self._microphone.run()),
                ]
                await self._speak_all(turns, timeout_s)
                for task in others:
                    task.cancel()
        except* (SessionFailed, ConnectionClosed, TimeoutError) as failures:
            failure = failures.exceptions[0]
            if not self.samples:
                self._begin(turns[0])
            self.samples[-1].error = str(failure) or "no answer came in time"

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._ws.send(json.dumps({"type": kind, **fields}))

    def _begin(self, turn: UserTurn) -> TurnProgress:
        sample = TurnSample(session=self._number, number=len(self.samples), speech_s=turn.seconds)
        self.samples.append(sample)
        self._turn = TurnProgress(sample)
        return self._turn

    async def _speak_all(self, turns: Sequence[UserTurn], timeout_s: float) -> None:
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            progress = self._begin(turn)
            spoken_s = await self._microphone.speak(turn.samples)
            progress.sample.spoken_s = spoken_s - self._start_s
            is_interrupted = following is not None and following.interrupts
            async with asyncio.timeout(timeout_s):
                await (progress.has_sound if is_interrupted else progress.is_done).wait()
            heard_s = INTERRUPTION_S if is_interrupted else progress.sample.audio_s
            begun_s = progress.sample.first_sound_s or self._now_s
            await asyncio.sleep(begun_s + heard_s - self._now_s)

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._start_s

    # What comes

    async def _read(self) -> None:
        async for frame in self._ws:
            await self._take(json.loads(frame))
        raise SessionFailed("the server closed the session")

    async def _take(self, event: Event) -> None:
        kind, now_s = event["type"], self._now_s
        if kind == "error":
            raise SessionFailed(f"{event['error'].get('code')}: {event['error'].get('message')}")
        if kind == "input_audio_buffer.speech_started":
            await self._interrupt(now_s)
        elif self._turn is None:
            return
        elif kind == "input_audio_buffer.speech_stopped":
            self._turn.sample.decided_s = now_s
        elif kind == "input_audio_buffer.committed":
            self._turn.sample.committed_s = now_s
        elif kind == "response.created":
            self._begun = event["response"]["id"]
            self._of[self._begun] = self._turn
            self._turn.sample.created_s = now_s
        elif kind == "response.done":
            self._end(event["response"], now_s)
        elif kind.startswith("response.") and kind.endswith(".delta"):
            self._hear(event, self._of[event["response_id"]], now_s)

    async def _interrupt(self, now_s: float) -> None:
        """Note that the server heard the user, and truncate what was being played."""
        heard = next(reversed(self._of.values()), None)
        if heard is None or heard is self._turn or heard.sample.interrupted_s is not None:
            return
        sample, first_s = heard.sample, heard.sample.first_sound_s
        is_played = heard.is_done.is_set() and now_s > (first_s or 0.0) + sample.audio_s
        if first_s is None or is_played:
            return
        sample.interrupted_s = now_s
        played_ms = round(1000 * min(now_s - first_s, sample.audio_s))
        place = {"item_id": heard.item_id, "content_index": 0, "audio_end_ms": played_ms}
        await self._send("conversation.item.truncate", **place)

    def _hear(self, event: Event, turn: TurnProgress, now_s: float) -> None:
        sample = turn.sample
        if sample.interrupted_s is not None:
            sample.num_late_deltas += 1
        if event["type"] == "response.output_audio.delta":
            turn.item_id = event["item_id"]
            sample.audio_s += decoded_bytes(event["delta"]) / BYTES_A_S
            sample.first_sound_s = sample.first_sound_s or now_s
            turn.has_sound.set()
        else:
            sample.first_text_s = sample.first_text_s or now_s

    def _end(self, response: Event, now_s: float) -> None:
        turn = self._of[response["id"]]
        sample = turn.sample
        sample.done_s = now_s
        details = response["usage"]["input_token_details"]
        sample.input_tokens = response["usage"]["input_tokens"]
        sample.cached_tokens = details["cached_tokens"]
        if response["status"] == "cancelled" and sample.interrupted_s is not None:
            sample.barge_in_s = now_s - sample.interrupted_s
        elif response["status"] == "failed":
            sample.error = json.dumps(response["status_details"]["error"])
        elif sample.first_sound_s is None:
            sample.error = "the answer has no sound"
        turn.has_sound.set()
        turn.is_done.set()

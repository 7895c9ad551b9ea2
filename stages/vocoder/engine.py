"""Batches a streaming decoder's work over requests: frames in, int16 samples out, nothing async."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Generic

from torch.profiler import record_function

from omnistage.stages.device.memory import is_out_of_memory, release_cached
from omnistage.stages.messages.loading import Phase, tell_loading
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vocoder.decoder import (
    UNASKED,
    Decoder,
    Frames,
    Samples,
    State,
    StreamPiece,
    to_int16,
)
from omnistage.stages.vocoder.metrics import DecoderMetrics
from omnistage.stages.vocoder.streams import (
    DecodedAudio,
    DecodeFailed,
    Fault,
    Limits,
    Pushed,
    Stream,
    Turn,
    bounded,
    deadline_of,
)

logger = logging.getLogger(__name__)


class DecoderEngine(Generic[State]):
    """Decodes the waiting chunks of all requests, those of one group as one batch.

    `step` belongs to one thread; everything else may be called from another one meanwhile. A
    request gets a slot of the decoder with its first batch and keeps it to its end; requests
    beyond the slots wait in the order of `open`. A batch that raises is tried again one request at
    a time.
    """

    def __init__(self, decoder: Decoder[State], limits: Limits | None = None) -> None:
        self.decoder = decoder
        self.limits = limits or Limits()
        self._frame_s = decoder.samples_per_frame / decoder.sample_rate_hz
        self._lock = threading.Lock()
        self._streams: dict[str, Stream[State]] = {}
        self._released: list[State] = []
        self.metrics = DecoderMetrics()

    def put(self, decoder: Decoder[State]) -> None:
        """Decode with another decoder of the same frames from now on; there is no open request."""
        with self._lock:
            self._released.clear()
            self.decoder = decoder

    def warm_up(self) -> None:
        """Decode once what the first requests will need, so that they do not pay for it."""
        decoder = self.decoder
        if decoder.device.type == "cuda":
            tell_loading(Phase.CAPTURING)
            decoder.capture()
        tell_loading(Phase.WARMING_UP)
        state = decoder.open(UNASKED)
        to_int16(decoder.decode([StreamPiece(state, decoder.blank(1))]).pcm).cpu()
        decoder.close(state)

    # Requests

    def open(self, request_id: str, lead: Frames | None = None, request: Request = UNASKED) -> None:
        """Begin a request; it takes no memory of the decoder yet.

        `lead`: frames [n, …] that are decoded before its own, and whose samples nobody hears.
        """
        if lead is not None:
            self.decoder.check(lead)
        with self._lock:
            if request_id in self._streams:
                raise ValueError(f"request {request_id} is open already")
            stream = self._streams[request_id] = Stream[State](request_id, request)
            if lead is not None and len(lead):
                stream.put_lead(lead, self.decoder.samples_per_frame)

    def push(self, request_id: str, frames: Frames | None, last: bool) -> None:
        """Add frames [n, …], none or zero of them too: each push gets one answer."""
        frames = self.decoder.blank(0) if frames is None else frames
        self.decoder.check(frames)
        with self._lock:
            stream = self._streams.get(request_id)
            if stream is None or stream.has_all:
                raise ValueError(f"request {request_id} takes no frames")
            stream.has_all = last
            stream.waiting.append(Pushed(frames, last, time.monotonic()))

    def is_idle(self, request_id: str) -> bool:
        """Returns whether nothing of a request waits to be decoded but its lead."""
        with self._lock:
            stream = self._streams.get(request_id)
            return stream is None or not stream.has_pushed

    def hold(self, request_id: str, is_held: bool) -> None:
        """Decode nothing of a request until it is held no more. Unknown ones are fine."""
        with self._lock:
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.is_held = is_held

    def cancel(self, request_id: str) -> None:
        """Forget a request; its slot is free at the next step. Unknown ones are fine."""
        with self._lock:
            stream = self._streams.pop(request_id, None)
            if stream is not None:
                self._release(stream)

    @property
    def num_streams(self) -> int:
        """Open requests."""
        return len(self._streams)

    # Decoding

    def step(self) -> list[DecodedAudio | DecodeFailed]:
        """Decode the most urgent batch; answers of finished chunks, none only without work."""
        while True:
            with self._lock:
                self._close_released()
                answers: list[DecodedAudio | DecodeFailed] = [*self._answer_empty()]
                batch = [] if answers else self._next_batch()
            if batch:
                answers = self._decode(batch)
            if answers or not batch:
                return answers

    def _close_released(self) -> None:
        for state in self._released:
            self.decoder.close(state)
        self._released.clear()

    def _release(self, stream: Stream[State]) -> None:
        """The slot may be in the batch that is decoding: the next step closes it."""
        if stream.state is not None:
            self._released.append(stream.state)
            stream.state = None

    def _answer_empty(self) -> list[DecodedAudio]:
        """Chunks without frames need no decoder, but the last one if it has kept frames."""
        answers = []
        for stream in [stream for stream in self._streams.values() if not stream.is_held]:
            while stream.waiting and not self._needs_decoder(stream):
                answers.append(self._finish_chunk(stream))
        return answers

    def _needs_decoder(self, stream: Stream[State]) -> bool:
        pushed = stream.waiting[0]
        has_kept = self.decoder.keeps_frames and stream.state is not None
        return len(pushed.frames) > 0 or (pushed.last and has_kept)

    def _next_batch(self) -> list[Turn[State]]:
        """Turns of one group, the most urgent one of all among them."""
        groups: dict[Hashable, list[Turn[State]]] = defaultdict(list)
        for turn in self._turns():
            groups[self.decoder.group_of(turn.piece)].append(turn)
        if not groups:
            return []
        most_urgent = min(groups.values(), key=lambda turns: min(map(deadline_of, turns)))
        return bounded(sorted(most_urgent, key=deadline_of), self.limits)

    def _turns(self) -> Iterator[Turn[State]]:
        """One of each stream that can go on; a stream's first one takes a slot."""
        for stream in self._streams.values():
            if not stream.waiting or stream.is_held:
                continue
            if stream.state is None:
                if not self._has_slot_for(stream):
                    continue
                stream.state = self.decoder.open(stream.request)
            yield self._turn(stream, stream.state)

    def _has_slot_for(self, stream: Stream[State]) -> bool:
        """A slot is free, or one is taken back: of a stream that has decoded its lead alone.

        Frames of that one may come only once those of others are taken, so it must not wait with
        a slot for which they wait.
        """
        if not self.decoder.num_free and stream.has_pushed:
            for other in self._streams.values():
                if other.primed is not None and not other.waiting:
                    self._take_back(other, other.primed)
                    break
        return self.decoder.num_free > 0

    def _take_back(self, stream: Stream[State], lead: Pushed) -> None:
        """Puts the lead back in the queue, so that it is decoded again before the first frames."""
        assert stream.state is not None
        self.decoder.close(stream.state)
        stream.state = stream.primed = None
        stream.put_lead(lead.frames, self.decoder.samples_per_frame)

    def _turn(self, stream: Stream[State], state: State) -> Turn[State]:
        """Short pieces are a stream's first: they go ahead of long ones, but not for ever.

        A lead is as urgent as the first frames that wait for it.
        """
        pushed = stream.waiting[0]
        frames = self._next_frames(pushed)
        end = pushed.num_decoded + len(frames)
        piece = StreamPiece(state, frames, pushed.last and end == len(pushed.frames))
        due = stream.waiting[1] if pushed.is_lead and stream.has_pushed else pushed
        deadline_s = due.arrived_s + len(self._next_frames(due)) * self._frame_s
        return Turn(stream, pushed, piece, deadline_s)

    def _next_frames(self, pushed: Pushed) -> Frames:
        """Returns the frames of one step."""
        return pushed.frames[pushed.num_decoded :][: self.limits.piece_frames]

    def _decode(self, batch: list[Turn[State]]) -> list[DecodedAudio | DecodeFailed]:
        """Decodes a batch; if it raises, each request alone: only one that raises then has
        failed.
        """
        answers = self._try(batch)
        if not isinstance(answers, Fault):
            return answers
        # The exception is gone, and with it what its frames held of the memory.
        if answers.is_out_of_memory:
            release_cached()
        if len(batch) > 1:
            return [answer for turn in batch for answer in self._decode([turn])]
        return self._drop(batch[0].stream, answers)

    def _try(self, batch: list[Turn[State]]) -> list[DecodedAudio | DecodeFailed] | Fault:
        """One step of the decoder; if it raised, every stream is where it was."""
        with self._lock:
            # A cancel since the batch was chosen has taken its stream's state.
            batch = [turn for turn in batch if turn.stream.state is not None]
        if not batch:
            return []
        began_at = time.monotonic()
        for pushed in (turn.pushed for turn in batch):
            if not (pushed.has_begun or pushed.is_lead):
                pushed.has_begun = True
                self.metrics.begun(began_at - pushed.arrived_s)
        try:
            with record_function(f"decode_{len(batch)}"):  # the name of a step in a profile
                pcm, heard, unfinished = self.decoder.decode([turn.piece for turn in batch])
                samples = to_int16(pcm).cpu().numpy()
        except Exception as error:
            names = ", ".join(turn.stream.request_id for turn in batch)
            num_frames = len(batch[0].piece.frames)
            logger.exception("decoding %d frames failed for %s", num_frames, names)
            return Fault(is_out_of_memory(error))
        finished = [turn for row, turn in enumerate(batch) if row not in unfinished]
        num_frames = sum(len(turn.piece.frames) for turn in finished)
        self.metrics.decoded(len(batch), num_frames, time.monotonic() - began_at)
        answers: list[DecodedAudio | DecodeFailed] = []
        with self._lock:
            for row, (turn, sound) in enumerate(zip(batch, heard, strict=True)):
                answers += self._go_on(turn, samples[row][sound], row in unfinished)
        return answers

    def _go_on(
        self, turn: Turn[State], samples: Samples, is_unfinished: bool
    ) -> list[DecodedAudio]:
        """The stream is one step further; its chunk's answer, if that is complete."""
        stream, pushed = turn.stream, turn.pushed
        self.decoder.advance(turn.piece)
        pushed.pcm.append(stream.heard(samples))
        if is_unfinished:
            return []
        pushed.num_decoded += len(turn.piece.frames)
        if pushed.num_decoded < len(pushed.frames) or not self._is_open(stream):
            return []
        stream.primed = stream.waiting.popleft() if pushed.is_lead else None
        return [] if pushed.is_lead else [self._finish_chunk(stream)]

    def _drop(self, stream: Stream[State], fault: Fault) -> list[DecodedAudio | DecodeFailed]:
        with self._lock:
            if not self._is_open(stream):
                return []  # cancelled meanwhile
            del self._streams[stream.request_id]
            self._release(stream)
        return [DecodeFailed(stream.request_id, fault.is_out_of_memory)]

    def _is_open(self, stream: Stream[State]) -> bool:
        """Returns whether the stream is open: its name may be another stream's by now."""
        return self._streams.get(stream.request_id) is stream

    def _finish_chunk(self, stream: Stream[State]) -> DecodedAudio:
        pushed = stream.waiting.popleft()
        if pushed.last:
            del self._streams[stream.request_id]
            self._release(stream)
        pcm = pushed.joined(self.decoder.num_channels)
        return DecodedAudio(stream.request_id, pcm, pushed.frames, pushed.last)

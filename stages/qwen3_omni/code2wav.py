"""Batches the vocoder's work over requests: codec frames in, int16 samples out, nothing async."""

import logging
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from omnistage.stages.device.devices import device_of
from omnistage.stages.device.dtypes import dtype_of
from omnistage.stages.device.memory import free_bytes, is_out_of_memory, release_cached
from omnistage.stages.device.start import Start
from omnistage.stages.messages.loading import Phase, tell_loading
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder, VocoderState
from omnistage.stages.vocoder.metrics import DecoderMetrics

logger = logging.getLogger(__name__)

FRAME_S = 0.08
MAX_PIECE_FRAMES = 100  # longer chunks are decoded in pieces: memory stays bounded
MAX_BATCH_FRAMES = 400  # rows times frames of one batch: beyond it a GPU only waits longer
GRAPH_FRAMES = (1, 2, 4, 8, 16, 25)  # chunk lengths and batches that get a CUDA graph, as long as
GRAPH_ROWS = (1, 2, 4, 8, 16, 32, 64)  # launching the kernels would take longer than running them
MAX_GRAPH_FRAMES = 128
SAMPLE_MAX = 32767
SAMPLE_RATE_HZ = 24_000  # of the codec; the checkpoint does not say it
ADVICE = "lower num_slots, take dtype: bfloat16, or a device with more memory"

Codes = npt.NDArray[np.int32]
Samples = npt.NDArray[np.int16]


class Audio(NamedTuple):
    """The answer to one push."""

    request_id: str
    pcm: Samples
    codes: Codes
    last: bool


class Failed(NamedTuple):
    """A request that could not be decoded even alone; it is forgotten."""

    request_id: str
    is_out_of_memory: bool = False


class Fault(NamedTuple):
    """Why a batch could not be decoded; the exception itself would hold memory."""

    is_out_of_memory: bool


@dataclass(slots=True)
class Frames:
    """One push on its way through the vocoder."""

    codes: Codes
    last: bool
    arrived_s: float
    num_decoded: int = 0
    pcm: list[Samples] = field(default_factory=list)

    @property
    def num_next(self) -> int:
        """Frames that the next batch takes of it."""
        return min(len(self.codes) - self.num_decoded, MAX_PIECE_FRAMES)

    @property
    def deadline_s(self) -> float:
        """Short chunks are a stream's first: they go ahead of long ones, but not for ever."""
        return self.arrived_s + self.num_next * FRAME_S


@dataclass(slots=True)
class Stream:
    """One open request."""

    request_id: str
    waiting: deque[Frames] = field(default_factory=deque)
    has_all: bool = False
    is_held: bool = False
    state: VocoderState | None = None


class Code2Wav:
    """Decodes the waiting chunks of all requests, equal lengths as one batch.

    `step` belongs to one thread; everything else may be called from another one meanwhile. A
    request gets a vocoder slot with its first batch and keeps it to its end; requests beyond the
    slots wait in the order of `open`. A batch that raises is tried again one request at a time.
    """

    def __init__(self, vocoder: StreamingVocoder) -> None:
        self._vocoder = vocoder
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}
        self._released: list[VocoderState] = []
        self.metrics = DecoderMetrics()

    @classmethod
    def from_checkpoint(
        cls,
        model: str,
        stage: str = "code2wav",
        *,
        num_slots: int = 64,
        dtype: str = "float32",
        device: str | None = None,
        load_format: Literal["auto", "dummy"] = "auto",
    ) -> "Code2Wav":
        """`device` is CUDA where there is one; `load_format: dummy` takes random weights.

        Raises DoesNotFit before anything is loaded.
        """
        torch_dtype = dtype_of(dtype)
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format {load_format!r} is none of auto, dummy")
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        place = device_of(device)
        wanted = StreamingVocoder.memory(model, torch_dtype, num_slots)
        Start(stage, place, torch_dtype, free_bytes(place), ADVICE, wanted).check()
        vocoder = StreamingVocoder.from_checkpoint(
            model,
            place,
            torch_dtype,
            num_slots,
            has_weights=load_format != "dummy",
        )
        return cls(vocoder)

    @property
    def vocoder(self) -> StreamingVocoder:
        """What decodes."""
        return self._vocoder

    def put(self, vocoder: StreamingVocoder) -> None:
        """Decode with another vocoder from now on; there is no open request."""
        with self._lock:
            self._released.clear()
            self._vocoder = vocoder

    def warm_up(self) -> None:
        """Decode once what the first requests will need, so that they do not pay for it."""
        if self._vocoder.device.type == "cuda":
            tell_loading(Phase.CAPTURING)
            # The largest first: its memory then serves the others.
            for num_frames, num_rows in product(reversed(GRAPH_FRAMES), reversed(GRAPH_ROWS)):
                if num_rows * num_frames <= MAX_GRAPH_FRAMES:
                    self._vocoder.record(num_rows, num_frames)
        tell_loading(Phase.WARMING_UP)
        state = self._vocoder.open()
        codes = torch.zeros(1, self._vocoder.num_codebooks, 1, dtype=torch.int64)
        pcm, _ = self._vocoder.decode([state], codes)
        to_int16(pcm).cpu()
        self._vocoder.close(state)

    # Requests

    def open(self, request_id: str) -> None:
        """Begin a request; it takes no memory of the vocoder yet."""
        with self._lock:
            if request_id in self._streams:
                raise ValueError(f"request {request_id} is open already")
            self._streams[request_id] = Stream(request_id)

    def push(self, request_id: str, codes: Codes | None, last: bool) -> None:
        """Add frames int32 [n, codebooks], none or zero of them too: each push gets one answer."""
        num_codebooks = self._vocoder.num_codebooks
        if codes is None:
            codes = np.zeros((0, num_codebooks), np.int32)
        if codes.ndim != 2 or codes.shape[1] != num_codebooks:
            raise ValueError(f"codes of shape {codes.shape}, expected [n, {num_codebooks}]")
        if codes.size and (codes.min() < 0 or codes.max() >= self._vocoder.codebook_size):
            raise ValueError(f"a code is not in 0..{self._vocoder.codebook_size - 1}")
        with self._lock:
            stream = self._streams.get(request_id)
            if stream is None or stream.has_all:
                raise ValueError(f"request {request_id} takes no frames")
            stream.has_all = last
            stream.waiting.append(Frames(codes, last, time.monotonic()))

    def is_idle(self, request_id: str) -> bool:
        """Whether nothing of a request waits to be decoded."""
        with self._lock:
            stream = self._streams.get(request_id)
            return stream is None or not stream.waiting

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

    def step(self) -> list[Audio | Failed]:
        """Decode the most urgent batch; answers of finished chunks, none only without work."""
        while True:
            with self._lock:
                self._close_released()
                answers: list[Audio | Failed] = [*self._answer_empty()]
                batch = [] if answers else self._next_batch()
            if batch:
                answers = self._decode(batch)
            if answers or not batch:
                return answers

    def _close_released(self) -> None:
        for state in self._released:
            self._vocoder.close(state)
        self._released.clear()

    def _release(self, stream: Stream) -> None:
        """The slot may be in the batch that is decoding: the next step closes it."""
        if stream.state is not None:
            self._released.append(stream.state)
            stream.state = None

    def _answer_empty(self) -> list[Audio]:
        """Chunks without frames need no vocoder."""
        answers = []
        for stream in [stream for stream in self._streams.values() if not stream.is_held]:
            while stream.waiting and not len(stream.waiting[0].codes):
                answers.append(self._finish_chunk(stream))
        return answers

    def _next_batch(self) -> list[Stream]:
        """Streams whose next pieces are equally long, the most urgent one among them."""
        by_length: dict[int, list[Stream]] = defaultdict(list)
        for stream in self._streams.values():
            if not stream.waiting or stream.is_held:
                continue
            if stream.state is None:
                if not self._vocoder.num_free:
                    continue
                stream.state = self._vocoder.open()
            by_length[stream.waiting[0].num_next].append(stream)
        if not by_length:
            return []

        def deadline_s(stream: Stream) -> float:
            return stream.waiting[0].deadline_s

        streams = min(by_length.values(), key=lambda group: min(map(deadline_s, group)))
        num_rows = max(1, MAX_BATCH_FRAMES // streams[0].waiting[0].num_next)
        return sorted(streams, key=deadline_s)[:num_rows]

    def _decode(self, batch: list[Stream]) -> list[Audio | Failed]:
        """Of a batch that raises each request alone: only one that raises then has failed."""
        answers = self._try(batch)
        if not isinstance(answers, Fault):
            return answers
        # The exception is gone, and with it what its frames held of the memory.
        if answers.is_out_of_memory:
            release_cached()
        if len(batch) > 1:
            return [answer for stream in batch for answer in self._decode([stream])]
        return self._drop(batch[0], answers)

    def _try(self, batch: list[Stream]) -> list[Audio | Failed] | Fault:
        """One decode; if it raised, every stream is where it was."""
        with self._lock:
            # A cancel since the batch was chosen has taken its stream's state.
            batch = [stream for stream in batch if stream.state is not None]
            pieces = [stream.waiting[0] for stream in batch]
            states = [stream.state for stream in batch if stream.state is not None]
        if not batch:
            return []
        num_frames = pieces[0].num_next
        codes = np.stack(
            [piece.codes[piece.num_decoded : piece.num_decoded + num_frames] for piece in pieces]
        )
        inputs = torch.from_numpy(codes.transpose(0, 2, 1)).long()
        began_at = time.monotonic()
        for piece in pieces:
            if not piece.num_decoded:
                self.metrics.begun(began_at - piece.arrived_s)
        try:
            pcm, starts = self._vocoder.decode(states, inputs)
            samples = to_int16(pcm).cpu().numpy()
        except Exception as error:
            names = ", ".join(stream.request_id for stream in batch)
            logger.exception("decoding %d frames failed for %s", num_frames, names)
            return Fault(is_out_of_memory(error))
        self.metrics.decoded(len(batch), num_frames, time.monotonic() - began_at)
        answers: list[Audio | Failed] = []
        with self._lock:
            rows = zip(batch, states, pieces, samples, starts, strict=True)
            for stream, state, piece, row, start in rows:
                state.advance(num_frames)
                piece.pcm.append(row[start:])
                piece.num_decoded += num_frames
                if self._is_open(stream) and piece.num_decoded == len(piece.codes):
                    answers.append(self._finish_chunk(stream))
        return answers

    def _drop(self, stream: Stream, fault: Fault) -> list[Audio | Failed]:
        with self._lock:
            if not self._is_open(stream):
                return []  # cancelled meanwhile
            del self._streams[stream.request_id]
            self._release(stream)
        return [Failed(stream.request_id, fault.is_out_of_memory)]

    def _is_open(self, stream: Stream) -> bool:
        """Its name may be another stream's by now."""
        return self._streams.get(stream.request_id) is stream

    def _finish_chunk(self, stream: Stream) -> Audio:
        piece = stream.waiting.popleft()
        if piece.last:
            del self._streams[stream.request_id]
            self._release(stream)
        pcm = np.concatenate([np.zeros(0, np.int16), *piece.pcm])
        return Audio(stream.request_id, pcm, piece.codes, piece.last)


def to_int16(pcm: torch.Tensor) -> torch.Tensor:
    """Samples in -1..1, what is beyond clipped, as int16."""
    return (pcm.clamp(-1, 1) * SAMPLE_MAX).round().to(torch.int16)

"""Qwen2.5-Omni's token2wav as a decoder of many streams: codes in, samples out while they come.

A flow makes the mel spectrogram of a chunk of blocks, of noise, by 36 evaluations of the DiT; then
the vocoder makes samples of a window of frames. Each evaluation is a step in which other streams
share. Of the past each stream keeps what entered each evaluation of its last blocks, so nothing but
the future is cut off: a stream differs from the solution of the whole answer by what the blocks
after the `ahead` ones of each chunk would have changed.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omnistage.stages.messages.to_gateway import NumChannels
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.token2wav.bigvgan import WindowVocoder
from omnistage.stages.qwen2_5_omni.token2wav.dit import BlockDiT
from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import Window, batches
from omnistage.stages.qwen2_5_omni.token2wav.flow import (
    STAGES,
    Noise,
    Solution,
    evaluated,
    next_states,
)
from omnistage.stages.qwen2_5_omni.token2wav.flow_schedule import Schedule
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_plan import (
    BlockPlan,
    Known,
    NextEvaluation,
    NextSound,
    StreamProgress,
)
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_voices import Speaker, name_of
from omnistage.stages.vllm.step.transfer import to_device
from omnistage.stages.vocoder.decoder import Decoded, Frames, StreamPiece

SAMPLE_RATE_HZ = 24_000  # the checkpoint does not say it
WARM_UP_BLOCKS = 3


@dataclass(slots=True)
class AnswerStream:
    """One answer: what was asked, its noise, how far it is, and what `advance` makes of that."""

    request: Request
    noise: Noise
    now: StreamProgress
    next: StreamProgress


class Token2Wav:
    """Owns the weights, the tables made of them, and the voices; a stream owns its own state."""

    keeps_frames = True

    def __init__(
        self,
        model: Qwen2_5OmniToken2WavModel,
        speakers: Mapping[str, Speaker],
        schedule: Schedule,
        num_slots: int,
    ) -> None:
        net: Any = model
        self.model = model
        self.dit = BlockDiT(net.code2wav_dit_model)
        self._vocoder = WindowVocoder.of(net)
        self._times = self.dit.times
        self._speakers = speakers
        self._voices: dict[str, torch.Tensor] = {}
        self._num_free = num_slots
        config = self.dit.config
        self._block = self.dit.block_frames, config.mel_dim
        self._num_codes: int = config.num_embeds + 1
        self._plan = BlockPlan(schedule, self.dit.block_frames, config.repeats)

    @property
    def device(self) -> torch.device:
        """Returns the device of its weights."""
        return self.dit.device

    @property
    def sample_rate_hz(self) -> int:
        """Returns the sample rate of its output."""
        return SAMPLE_RATE_HZ

    @property
    def num_channels(self) -> NumChannels:
        """Returns the channels of its output."""
        return 1

    @property
    def samples_per_frame(self) -> int:
        """Returns the samples of a code."""
        return self._plan.repeats * self._vocoder.samples_per_frame

    @property
    def bytes_each(self) -> int:
        """Memory that a stream's state takes while its longest chunk is solved, at the least."""
        carried = 2 * self.dit.depth * self._times.num_evaluations
        solved = STAGES * self._plan.schedule.longest_chunk
        return (carried + solved) * self.dit.empty(*self._block).nbytes

    # Streams

    @property
    def num_free(self) -> int:
        """Streams that may still be opened."""
        return self._num_free

    def open(self, request: Request) -> AnswerStream:
        """A new stream; the caller checks `num_free`."""
        self._num_free -= 1
        block = self._block
        progress = StreamProgress(
            codes=np.zeros(0, np.int64),
            mel=self.dit.empty(0, self._block[1]),
            carried=self.dit.empty(self._times.num_evaluations, 0, *block),
        )
        return AnswerStream(request, Noise(request.seed, *block), progress, progress)

    def close(self, state: AnswerStream) -> None:
        """Drops the state with it."""
        self._num_free += 1

    # Codes

    def blank(self, num_frames: int) -> Frames:
        """Code 0."""
        return np.zeros((num_frames, 1), np.int32)

    def check(self, frames: Frames) -> None:
        """Raises ValueError unless every code has an embedding."""
        if frames.ndim != 2 or frames.shape[1] != 1:
            raise ValueError(f"codes of shape {frames.shape}, expected [n, 1]")
        if frames.size and (frames.min() < 0 or frames.max() >= self._num_codes):
            raise ValueError(f"a code is not in 0..{self._num_codes - 1}")

    # Decoding

    def group_of(self, piece: StreamPiece[AnswerStream]) -> Hashable:
        """All evaluations share a step; of the vocoder's windows those that are equally long."""
        work = self._plan.next(piece.state.now, _known(piece))
        if isinstance(work, NextSound):
            return work.end - work.start
        return "nothing" if work is None else "evaluation"

    @torch.inference_mode()
    def decode(self, pieces: Sequence[StreamPiece[AnswerStream]]) -> Decoded:
        """One evaluation of each stream, or the samples of a window of each, or nothing of any."""
        works = [self._plan.next(piece.state.now, _known(piece)) for piece in pieces]
        for piece in pieces:
            piece.state.next = piece.state.now
        sounds = [work for work in works if isinstance(work, NextSound)]
        chunks = [work for work in works if isinstance(work, NextEvaluation)]
        if chunks:
            self._evaluate(pieces, chunks)
        pcm, heard = self._sound(pieces, sounds) if sounds else self._silence(len(pieces))
        return Decoded(pcm, heard, self._settle(pieces))

    def advance(self, piece: StreamPiece[AnswerStream]) -> None:
        """The stream is where the last step has brought it."""
        piece.state.now = piece.state.next

    def capture(self) -> None:
        """Record the DiT; then a chunk is decoded, so that libraries have set up the vocoder."""
        codes = self.blank(WARM_UP_BLOCKS * self.dit.codes_per_block)
        piece = StreamPiece(self.open(Request(None, [])), codes, is_last=True)
        if self.device.type == "cuda":
            self._record(piece)
            self._vocoder.capture(self._plan.schedule.window_lengths(self.dit.block_frames))
        while self.decode([piece]).unfinished:
            self.advance(piece)
        self.close(piece.state)

    def _record(self, piece: StreamPiece[AnswerStream]) -> None:
        """Graphs of the DiT, by the example of a stream's first evaluation."""
        chunk = self._plan.next(piece.state.now, _known(piece))
        assert isinstance(chunk, NextEvaluation)
        solution = self._begin(piece, chunk)
        self.dit.capture([self._window(piece, solution, solution.start)])

    def _settle(self, pieces: Sequence[StreamPiece[AnswerStream]]) -> set[int]:
        """The rows that need another step; the codes of the others' pieces are the stream's."""
        unfinished = set()
        for row, piece in enumerate(pieces):
            stream, known = piece.state, _known(piece)
            if self._plan.next(stream.next, known) is not None:
                unfinished.add(row)
            else:
                stream.next = replace(stream.next, codes=known.codes)
        return unfinished

    # The flow

    def _evaluate(
        self, pieces: Sequence[StreamPiece[AnswerStream]], chunks: Sequence[NextEvaluation]
    ) -> None:
        solutions = [
            piece.state.now.solution or self._begin(piece, chunk)
            for piece, chunk in zip(pieces, chunks, strict=True)
        ]
        states = next_states(solutions, self._times)
        windows = [
            self._window(piece, solution, state)
            for piece, solution, state in zip(pieces, solutions, states, strict=True)
        ]
        velocities = [
            velocity for batch in batches(windows) for velocity in self.dit.velocities(batch)
        ]
        solved = evaluated(solutions, states, velocities, self._times)
        for piece, solution in zip(pieces, solved, strict=True):
            piece.state.next = self._with(piece, solution)

    def _begin(self, piece: StreamPiece[AnswerStream], chunk: NextEvaluation) -> Solution:
        if chunk.end > self.dit.max_blocks:
            raise ValueError(
                f"an answer of more than {self.dit.max_blocks} blocks has no positions"
            )
        size, repeats = self.dit.block_frames, self._plan.repeats
        there = repeats * len(_known(piece).codes)
        noise = piece.state.noise.blocks(
            chunk.first, min(chunk.end * size, there) - chunk.first * size
        )
        return Solution(
            first=chunk.first,
            num_kept=chunk.kept - chunk.first,
            start=to_device(noise.numpy(), self.device).to(self.dit.empty(0).dtype),
            past=piece.state.now.carried,
            num_carried=self.dit.depth,
        )

    def _window(
        self, piece: StreamPiece[AnswerStream], solution: Solution, state: torch.Tensor
    ) -> Window:
        past = solution.past[solution.num_evaluated]
        first, size = solution.first - len(past), self.dit.codes_per_block
        return Window(
            past=past,
            state=state,
            codes=_known(piece).codes[first * size : (solution.first + len(state)) * size],
            first=first,
            time=self._times.of_evaluation[solution.num_evaluated],
            voice=self._voice(piece.state.request),
        )

    def _with(self, piece: StreamPiece[AnswerStream], solution: Solution) -> StreamProgress:
        """The stream's progress with a solution that is one evaluation further."""
        now = piece.state.now
        if not solution.is_solved(self._times):
            return replace(now, solution=solution)
        there = self._plan.repeats * len(_known(piece).codes) - now.mel_end
        frames = solution.start[: solution.num_kept].flatten(0, 1)[:there]
        return replace(
            now,
            solution=None,
            num_solved=solution.first + solution.num_kept,
            carried=solution.carried,
            mel=torch.cat([now.mel, frames]),
        )

    def _voice(self, request: Request) -> torch.Tensor:
        """The speaker's embedding is computed once."""
        name = name_of(request.speaker, self._speakers)
        if name not in self._voices:
            speaker = self._speakers[name]
            self._voices[name] = self.dit.voice(speaker.vector, speaker.mel)
        return self._voices[name]

    # The vocoder

    def _sound(
        self, pieces: Sequence[StreamPiece[AnswerStream]], sounds: Sequence[NextSound]
    ) -> tuple[torch.Tensor, list[slice]]:
        mels, heard, size = [], [], self._vocoder.samples_per_frame
        for piece, sound in zip(pieces, sounds, strict=True):
            now = piece.state.now
            mels.append(now.mel[sound.start - now.mel_start : sound.end - now.mel_start])
            first = (now.num_sent - sound.start) * size
            heard.append(slice(first, (sound.ready - sound.start) * size))
            piece.state.next = now.after(sound, self._plan.schedule.context)
        return self._vocoder(torch.stack(mels)), heard

    def _silence(self, num_rows: int) -> tuple[torch.Tensor, list[slice]]:
        return self.dit.empty(num_rows, 0), [slice(0)] * num_rows


def _known(piece: StreamPiece[AnswerStream]) -> Known:
    codes = np.concatenate([piece.state.now.codes, piece.frames[:, 0].astype(np.int64)])
    return Known(codes, piece.is_last)

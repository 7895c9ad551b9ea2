"""The loads of Qwen3-Omni's talker and code2wav on a GPU, without vLLM."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig

from omnistage.stages.device.dtypes import default_dtype, dtype_of
from omnistage.stages.device.recording import record
from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.speech.code_predictor import CodePredictor
from omnistage.stages.vocoder.decoder import UNASKED, Frames, StreamPiece
from omnistage.stages.vocoder.engine import Limits, to_int16

TALKER, CODE2WAV = "talker", "code2wav"
STEP, CHUNK, FIRST = "step", "chunk", "first"
HIDDEN = "hidden"  # what else a step leaves
CHUNK_FRAMES = 25
NUM_SETS = 4  # of inputs, taken in turn: what a kernel leaves of the step before is then wrong

Array = npt.NDArray[Any]
Answers = Mapping[str, Sequence[Array]]
"""By kind, those to each set of inputs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of all processes: a model's folder, and one for the answers of the loads alone."""

    model: str
    device: str
    dtype: str
    answers: Path


def experts_read(num_experts: int, num_chosen: int, num_rows: int) -> int:
    """How many experts of a layer are expected to be chosen by a row or more."""
    missed = (1 - num_chosen / num_experts) ** num_rows
    return max(num_chosen, round(num_experts * (1 - missed)))


def batches(num_rows: int, num_frames: int) -> list[slice]:
    """Rows of each decode, as the engine takes them."""
    most = max(1, Limits().batch_frames // num_frames)
    return [slice(start, min(start + most, num_rows)) for start in range(0, num_rows, most)]


def num_first(level: int) -> int:
    """Streams that begin while each of the others has a chunk: an answer has some eight."""
    return max(1, level // 8)


def relative_rms(ours: Array, reference: Array) -> float:
    """How far they are off; infinitely, if there is a NaN among them."""
    if np.array_equal(ours, reference):
        return 0.0
    wide = reference.astype(np.float64)
    scale = np.sqrt(np.square(wide).mean())
    off = np.sqrt(np.square(ours.astype(np.float64) - wide).mean())
    error = float(off / scale) if scale else float(off)
    return error if math.isfinite(error) else math.inf


class Load(Protocol):
    """One of the two."""

    name: str

    def prepare(self, level: int, stream: Any) -> None:
        """Record the graphs for so many streams; their kernels run as those of this CUDA stream."""

    def do(self, kind: str, number: int) -> Array:
        """One piece of work, its result on the host."""

    def answers(self) -> Answers:
        """To each set of inputs, and what `hidden_error` needs."""

    def hidden_error(self, number: int, reference: Answers) -> float:
        """Returns the error of the last piece of work on the device."""


class StandIn(nn.Module):
    """The weights of the talker's layers, and products that read those of one step."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        layers, size = config.num_hidden_layers, config.hidden_size
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        head = getattr(config, "head_dim", None) or size // heads
        inner, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
        self._num_experts, self._num_chosen = config.num_experts, config.num_experts_per_tok
        self._attended = heads * head
        self.qkv = _weights(layers, size, (heads + 2 * key_heads) * head)
        self.attention_out = _weights(layers, heads * head, size)
        self.shared_in = _weights(layers, size, 2 * shared)
        self.shared_out = _weights(layers, shared, size)
        self.experts_in = _weights(layers, self._num_experts, size, 2 * inner)
        self.experts_out = _weights(layers, self._num_experts, inner, size)

    def bytes_read(self, num_rows: int) -> int:
        """Returns the bytes of weights for a step of so many rows."""
        count = experts_read(self._num_experts, self._num_chosen, num_rows)
        experts = self.experts_in.nbytes + self.experts_out.nbytes
        rest = sum(one.nbytes for one in self.parameters()) - experts
        num_bytes: int = rest + experts * count // self._num_experts
        return num_bytes

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """From and to hidden states [B, hidden]."""
        count = experts_read(self._num_experts, self._num_chosen, len(hidden))
        each = math.ceil(len(hidden) * self._num_chosen / count)
        for layer in range(len(self.qkv)):
            attended = (_normal(hidden) @ self.qkv[layer])[:, : self._attended]
            hidden = hidden + attended @ self.attention_out[layer]
            normal = _normal(hidden)
            shared = _gated(normal @ self.shared_in[layer]) @ self.shared_out[layer]
            rows = normal.repeat(math.ceil(count * each / len(hidden)), 1)[: count * each]
            inner = _gated(rows.view(count, each, -1) @ self.experts_in[layer, :count])
            chosen = (inner @ self.experts_out[layer, :count]).flatten(0, 1)
            whole = count * each // len(hidden) * len(hidden)
            hidden = hidden + shared + chosen[:whole].view(-1, *hidden.shape).sum(0)
        return _normal(hidden)


def _weights(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def _normal(hidden: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(hidden, hidden.shape[-1:])


def _gated(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


def bytes_read(model: str, num_rows: int) -> int:
    """Returns the bytes of the talker's layers for a step of so many requests in bfloat16."""
    config: Any = AutoConfig.from_pretrained(model).talker_config
    with default_dtype(torch.bfloat16), torch.device("meta"):
        num_bytes: int = StandIn(config.text_config).bytes_read(num_rows)
    return num_bytes


class Talker:
    """Steps of so many requests, each a graph and a copy of its codes."""

    name = TALKER

    def __init__(self, plan: Plan) -> None:
        config: Any = AutoConfig.from_pretrained(plan.model).talker_config
        text, self._config = config.text_config, config.code_predictor_config
        self._device, self._dtype = torch.device(plan.device), dtype_of(plan.dtype)
        with default_dtype(self._dtype), self._device:
            self._layers = StandIn(text)
            self._predictor = CodePredictor(self._config, talker_size=text.hidden_size)
            self._predictor.requires_grad_(False)
        for module in (self._layers, self._predictor):
            named: nn.Module = module
            fill_with_dummy_weights(named.named_parameters())
        self._size = text.hidden_size
        self._run: Callable[[], torch.Tensor] = lambda: torch.empty(0)

    @torch.inference_mode()
    def prepare(self, level: int, stream: Any) -> None:
        """One graph of a step."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(NUM_SETS, level, self._size, generator=generator)
        self._inputs = drawn.to(self._device, self._dtype)
        self._input, self._hidden = self._inputs[0].clone(), self._inputs[0].clone()
        rows = torch.arange(level)
        given = {
            "code0": rows % self._config.vocab_size,
            "code0_embedding": drawn[0].to(self._dtype),
            "temperature": torch.ones(level),
            "top_k": torch.full((level,), 50),
            "top_p": torch.full((level,), 0.8),
            "seed": rows,
            "frame": rows,
        }
        arguments = {name: value.to(self._device) for name, value in given.items()}

        def compute() -> torch.Tensor:
            self._hidden.copy_(self._layers(self._input))
            codes, _ = self._predictor(last_hidden=self._hidden, **arguments)
            assert isinstance(codes, torch.Tensor)
            return codes

        self._run = compute
        if stream is not None:
            graph, codes = record(compute, None)

            def replay() -> torch.Tensor:
                graph.replay()
                return codes

            self._run = replay

    @torch.inference_mode()
    def do(self, kind: str, number: int) -> Array:
        """The codes [B, groups] of a step."""
        self._input.copy_(self._inputs[number % NUM_SETS])
        return self._run().to("cpu", copy=True).numpy()

    def answers(self) -> Answers:
        """Codes, and the hidden states that they are made of."""
        codes, hidden = [], []
        for number in range(NUM_SETS):
            codes.append(self.do(STEP, number))
            hidden.append(self._hidden.to("cpu", torch.float32, copy=True).numpy())
        return {STEP: codes, HIDDEN: hidden}

    def hidden_error(self, number: int, reference: Answers) -> float:
        """Relative RMS, after the step `number`."""
        ours = self._hidden.float().cpu().numpy()
        return relative_rms(ours, reference[HIDDEN][number % NUM_SETS])


class Code2wav:
    """Chunks of all streams, and first frames of some."""

    name = CODE2WAV

    def __init__(self, plan: Plan) -> None:
        device, dtype = torch.device(plan.device), dtype_of(plan.dtype)
        self._model = StreamingVocoder.read(plan.model, device, dtype, has_weights=False)

    def prepare(self, level: int, stream: Any) -> None:
        """A graph for each shape of a decode."""
        count = num_first(level)
        self._vocoder = StreamingVocoder(self._model, num_slots=level + count)
        self._rows = {CHUNK: level, FIRST: count}
        self._length = {CHUNK: CHUNK_FRAMES, FIRST: 1}
        self._slots = {
            kind: [self._vocoder.open(UNASKED) for _ in range(rows)]
            for kind, rows in self._rows.items()
        }
        self._frames = {
            kind: [self._drawn(kind, one) for one in range(NUM_SETS)] for kind in self._rows
        }
        if stream is not None:
            shapes = {
                (rows.stop - rows.start, self._length[kind])
                for kind, total in self._rows.items()
                for rows in batches(total, self._length[kind])
            }
            for num_rows, num_frames in sorted(shapes, reverse=True):
                self._vocoder.record(num_rows, num_frames)

    def _drawn(self, kind: str, number: int) -> Frames:
        codec = self._vocoder.codec
        shape = self._rows[kind], self._length[kind], codec.num_codebooks
        return np.random.default_rng(number).integers(0, codec.codebook_size, shape, np.int32)

    def do(self, kind: str, number: int) -> Array:
        """int16 samples [rows, n]; every stream stays where it is, so that sets can come again."""
        slots, frames = self._slots[kind], self._frames[kind][number % NUM_SETS]
        done = []
        for rows in batches(self._rows[kind], self._length[kind]):
            pieces = [StreamPiece(*one) for one in zip(slots[rows], frames[rows], strict=True)]
            done.append(to_int16(self._vocoder.decode(pieces).pcm).cpu().numpy())
        return np.concatenate(done)

    def answers(self) -> Answers:
        """Samples."""
        return {kind: [self.do(kind, one) for one in range(NUM_SETS)] for kind in (CHUNK, FIRST)}

    def hidden_error(self, number: int, reference: Answers) -> float:
        """It leaves nothing else."""
        return 0.0


LOADS: dict[str, Callable[[Plan], Load]] = {TALKER: Talker, CODE2WAV: Code2wav}

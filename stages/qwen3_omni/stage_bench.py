"""The parts of a spoken frame beside the least they could take: `omnistage bench stages`.

A floor is the bytes that must be read, each weight once a pass, at the rate of a large copy.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from omnistage.stages.device.dtypes import default_dtype, dtype_of
from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.speech.code_predictor import CodePredictor
from omnistage.stages.speech.code_predictor_graphs import CodePredictorGraphs
from omnistage.stages.vocoder.decoder import UNASKED, StreamPiece
from omnistage.stages.vocoder.start import DecoderOptions

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
NUM_WARM_UP, NUM_GROUPS, MIN_GROUP_S = 3, 5, 0.05


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """One measured thing: `work` is what took `time_s`, at least `floor_s`."""

    name: str
    batch: int
    work: str
    time_s: float
    floor_s: float


class StageBench:
    """Measures on one device; the weights are dummies."""

    def __init__(self, model: str, dtype: str | None = None) -> None:
        self._model = model
        self._config = AutoConfig.from_pretrained(model)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = dtype or ("bfloat16" if self._device.type == "cuda" else "float32")
        self.bytes_per_s = self._copy_rate()

    def code_predictor(self, batches: Sequence[int]) -> Iterator[MeasuredPart]:
        """The residual codes of one frame a row."""
        config = self._config.talker_config.code_predictor_config
        with default_dtype(dtype_of(self._dtype)), self._device:
            predictor = CodePredictor(config).requires_grad_(False)
        fill_with_dummy_weights(predictor.named_parameters())
        num_passes = len(predictor.lm_head)
        read = num_passes * _num_bytes(predictor.model.layers) + _num_bytes(predictor.lm_head)
        for batch in batches:
            sizes = [batch] if self._device.type == "cuda" else []
            graphs = CodePredictorGraphs(predictor, sizes)
            arguments = self._predictor_arguments(config, batch)
            with torch.inference_mode():
                graphs.record(arguments)
                time_s = self._timed(partial(graphs, **arguments))
            yield MeasuredPart("code predictor", batch, "a frame", time_s, read / self.bytes_per_s)

    def _predictor_arguments(self, config: Any, batch: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        hidden, embedding = torch.randn(2, batch, config.hidden_size, generator=generator)
        rows = torch.arange(batch)
        given = {
            "last_hidden": hidden.to(dtype_of(self._dtype)),
            "code0": rows % config.vocab_size,
            "code0_embedding": embedding.to(dtype_of(self._dtype)),
            "temperature": torch.ones(batch),
            "top_k": torch.full((batch,), 50),
            "top_p": torch.full((batch,), 0.8),
            "seed": rows,
            "frame": rows,
        }
        return {name: value.to(self._device) for name, value in given.items()}

    def code2wav(self, batches: Sequence[int], lengths: Sequence[int]) -> Iterator[MeasuredPart]:
        """A chunk of codec frames a row, by batch and length."""
        options = DecoderOptions(num_slots=max(batches), dtype=self._dtype, load_format="dummy")
        engine = StreamingVocoder.engine(self._model, "code2wav", options)
        engine.warm_up()
        vocoder = engine.decoder
        wanted = StreamingVocoder.memory(self._model, options.torch_dtype, options.num_slots)
        floor_s = wanted["weights"] / self.bytes_per_s
        for batch in batches:
            states = [vocoder.open(UNASKED) for _ in range(batch)]
            for length in lengths:
                pieces = [StreamPiece(state, vocoder.blank(length)) for state in states]
                work = f"{length} frame{'s' if length > 1 else ''}"
                time_s = self._timed(partial(vocoder.decode, pieces))
                yield MeasuredPart("code2wav", batch, work, time_s, floor_s)
            for state in states:
                vocoder.close(state)

    def _copy_rate(self) -> float:
        source = torch.ones(COPY_BYTES[self._device.type], dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return 2 * source.numel() / self._timed(lambda: target.copy_(source))

    def _timed(self, run: Callable[[], object]) -> float:
        """Seconds a call: the median of a few groups, each long enough for the clock."""
        for _ in range(NUM_WARM_UP):
            run()
        count = max(1, int(MIN_GROUP_S / self._group_s(run, 1)))
        return median(self._group_s(run, count) / count for _ in range(NUM_GROUPS))

    def _group_s(self, run: Callable[[], object], count: int) -> float:
        self._synchronize()
        started = time.perf_counter()
        for _ in range(count):
            run()
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def _num_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())

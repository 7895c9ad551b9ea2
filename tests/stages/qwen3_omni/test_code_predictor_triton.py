"""The kernels against plain torch; without a GPU, TRITON_INTERPRET=1 runs them on the CPU."""

import importlib
import os
from types import ModuleType

import pytest
import torch

from omnistage.stages.qwen3_omni import code_predictor_plain as plain
from omnistage.stages.qwen3_omni.code_predictor_plain import Span
from omnistage.stages.qwen3_omni.code_sampling import FrameSampling, frame_sampling

NUM_ROWS, NUM_HEADS, NUM_KEY_HEADS, HEAD_DIM, NUM_POSITIONS = 3, 4, 2, 16, 6
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPANS = [(0, 2), (2, 3), (4, 5)]


IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE.type == "cpu" and not IS_INTERPRETED, reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def fused() -> ModuleType:
    return importlib.import_module("omnistage.stages.qwen3_omni.code_predictor_triton")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("size", [32, 40])
def test_add_and_normalise(fused: ModuleType, size: int) -> None:
    hidden, branch = random(NUM_ROWS, 2, size), random(NUM_ROWS, 2, size, seed=1)
    weight = random(size, seed=2)
    for added in (branch, None):
        expected = plain.add_and_normalise(hidden, added, weight, 1e-6)
        actual = fused.add_and_normalise(hidden, added, weight, 1e-6)
        assert all(close(*pair) for pair in zip(actual, expected, strict=True))


@pytest.mark.parametrize(("start", "end"), SPANS)
def test_attention_over_the_cache(fused: ModuleType, start: int, end: int) -> None:
    projected = random(NUM_ROWS, end - start, NUM_HEADS + 2 * NUM_KEY_HEADS, HEAD_DIM)
    weights = random(HEAD_DIM, seed=1), random(HEAD_DIM, seed=2)
    caches = [random(2, NUM_ROWS, NUM_POSITIONS, NUM_KEY_HEADS, HEAD_DIM, seed=3)] * 2
    caches[1] = caches[0].clone()
    angles = random(NUM_POSITIONS, HEAD_DIM // 2, seed=4).repeat(1, 2)
    span = Span(start, end, torch.stack([angles.cos(), angles.sin()]))
    results = []
    for run, cache in zip((plain, fused), caches, strict=True):
        queries = run.rotate_and_store(projected, *weights, 1e-6, cache, span)
        results.append((queries, cache, run.attend(queries, cache, span)))
    assert all(close(*pair) for pair in zip(*results, strict=True))


def test_gate(fused: ModuleType) -> None:
    gate_and_up = random(NUM_ROWS, 1, 2 * 40)
    assert close(fused.gate(gate_and_up), plain.gate(gate_and_up))


def sampling(
    top_k: int, top_p: float, temperature: float = 0.7, num_rows: int = 32
) -> FrameSampling:
    return frame_sampling(
        temperature=torch.full((num_rows,), temperature, device=DEVICE),
        top_k=torch.full((num_rows,), top_k, device=DEVICE),
        top_p=torch.full((num_rows,), top_p, device=DEVICE),
        seed=torch.arange(num_rows, device=DEVICE),
        frame=torch.zeros(num_rows, dtype=torch.int64, device=DEVICE),
        num_codebooks=2,
        vocab_size=48,
    )


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (50, 0.8), (5, 1.0), (1, 1.0), (0, 0.3), (0, 0.0), (7, 0.6)]
)
def test_pick(fused: ModuleType, top_k: int, top_p: float) -> None:
    settings = sampling(top_k, top_p)
    logits = 3 * random(32, 48)
    expected = plain.pick(logits, settings, 1)
    assert torch.equal(fused.pick(logits, settings, 1), expected)
    greedy = fused.pick(logits, sampling(top_k, top_p, temperature=0.0), 1)
    assert torch.equal(greedy, logits.argmax(-1))

"""The kernels against plain torch; without a GPU, TRITON_INTERPRET=1 runs them on the CPU."""

import importlib
import os
from types import ModuleType

import pytest
import torch

from omnistage.stages.speech import code_predictor_plain as plain
from omnistage.stages.speech.code_sampling import FrameSampling, frame_sampling, gumbel_noise

NUM_ROWS, NUM_HEADS, NUM_KEY_HEADS, HEAD_DIM, NUM_POSITIONS = 3, 4, 2, 16, 6
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NUM_PICKED = 6 if IS_INTERPRETED else 32  # rows, each of which the interpreter takes .05 s for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE.type == "cpu" and not IS_INTERPRETED, reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def fused() -> ModuleType:
    return importlib.import_module("omnistage.stages.speech.code_predictor_triton")


@pytest.fixture(scope="module")
def products() -> ModuleType:
    return importlib.import_module("omnistage.stages.speech.code_products_triton")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((actual - expected).norm() < 1e-5 * expected.norm())


@pytest.mark.parametrize(("num_rows", "size"), [(1, 32), (3, 40), (8, 160), (9, 160)])
@pytest.mark.parametrize("num_outputs", [24, 80])
def test_products(fused: ModuleType, num_rows: int, size: int, num_outputs: int) -> None:
    hidden, norm, weight = random(num_rows, size), random(size, seed=1), random(num_outputs, size)
    for name in ("normal_linear", "normal_gated_linear"):
        ours, its = (getattr(run, name)(hidden, norm, 1e-6, weight) for run in (fused, plain))
        assert close(ours, its)
    residual = random(num_rows, num_outputs, seed=3)
    ours, its = (run.linear_add(hidden, weight, residual.clone()) for run in (fused, plain))
    assert close(ours, its)


@pytest.mark.parametrize(("num_rows", "size", "num_outputs"), [(1, 40, 24), (70, 160, 80)])
def test_products_that_do_not_depend_on_other_rows(
    products: ModuleType, num_rows: int, size: int, num_outputs: int
) -> None:
    inputs, weight = random(num_rows, size), random(num_outputs, size, seed=2)
    residual = random(num_rows, num_outputs, seed=3)
    for added in (None, residual):
        found = products.invariant_linear(inputs, weight, added)
        assert close(found, inputs @ weight.t() + (0 if added is None else added))
        alone = products.invariant_linear(
            inputs[-1:], weight, None if added is None else added[-1:]
        )
        assert torch.equal(found[-1:], alone)


def test_a_layer_s_product_depends_on_no_other_row_if_vllm_s_must_not(
    fused: ModuleType, products: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, weight, bias = random(70, 160), random(80, 160, seed=2), random(80, seed=3)
    assert close(fused.linear(inputs, weight, bias), plain.linear(inputs, weight, bias))
    monkeypatch.setattr(products, "IS_INVARIANT", True)
    together = fused.linear(inputs, weight, bias)
    assert close(together, plain.linear(inputs, weight, bias))
    for count in (1, 7, 64):
        assert torch.equal(fused.linear(inputs[:count], weight, bias), together[:count])
        others = random(70, 160, seed=4)
        others[:count] = inputs[:count]
        assert torch.equal(fused.linear(others, weight, bias)[:count], together[:count])
        if not IS_INTERPRETED:  # NumPy's product of a tile depends on a row's place on some CPUs
            assert torch.equal(fused.linear(inputs[-count:], weight, bias), together[-count:])


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter multiplies bfloat16 as integers")
def test_bfloat16_products(fused: ModuleType) -> None:
    hidden, norm, weight = random(3, 64), random(64, seed=1), random(48, 64, seed=2)
    halves = (tensor.bfloat16() for tensor in (hidden, norm, weight))
    expected = plain.normal_linear(hidden, norm, 1e-6, weight)
    actual = fused.normal_linear(next(halves), next(halves), 1e-6, next(halves))
    assert actual.dtype == torch.bfloat16
    assert (actual.float() - expected).norm() < 1e-2 * expected.norm()


def test_attention_over_the_cache(fused: ModuleType) -> None:
    weights = random(HEAD_DIM, seed=1), random(HEAD_DIM, seed=2)
    caches = [random(2, NUM_ROWS, NUM_POSITIONS, NUM_KEY_HEADS, HEAD_DIM, seed=3)] * 2
    caches[1] = caches[0].clone()
    angles = random(NUM_POSITIONS, HEAD_DIM // 2, seed=4).repeat(1, 2)
    rotations = torch.stack([angles.cos(), angles.sin()])
    for position, num_new in ((0, 2), (2, 1), (NUM_POSITIONS - 1, 1)):
        num_heads = NUM_HEADS + 2 * NUM_KEY_HEADS
        projected = random(NUM_ROWS * num_new, num_heads, HEAD_DIM, seed=position)
        outputs = [
            run.attend(projected, *weights, 1e-6, cache, position, rotations)
            for run, cache in zip((plain, fused), caches, strict=True)
        ]
        assert close(*outputs)
        assert close(*caches)


def test_noise(fused: ModuleType) -> None:
    seed = torch.tensor([0, 1, 12345, -7, (1 << 63) - 1], device=DEVICE)
    frame = torch.tensor([0, 3, 70000, 1, 1 << 40], device=DEVICE)
    expected, found = (make(seed, frame, 15, 300) for make in (gumbel_noise, fused.gumbel_noise))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def sampling(
    top_k: int, top_p: float, temperature: float = 0.7, num_rows: int = NUM_PICKED
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
    logits, table = 3 * random(NUM_PICKED, 48), random(48, 40, seed=1)
    totals = [random(NUM_PICKED, 40, seed=2), random(NUM_PICKED, 40, seed=2)]
    expected = plain.pick(logits, settings, 1, table, totals[0])
    actual = fused.pick(logits, settings, 1, table, totals[1])
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], table[expected[0]])
    assert close(*totals)
    greedy, _ = fused.pick(logits, sampling(top_k, top_p, temperature=0.0), 1, table, totals[0])
    assert torch.equal(greedy, logits.argmax(-1))

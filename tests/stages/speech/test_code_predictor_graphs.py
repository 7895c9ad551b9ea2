"""Recorded batches of the code predictor against the predictor itself."""

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
)

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.speech.code_predictor import CodePredictor
from omnistage.stages.speech.code_predictor_graphs import CodePredictorGraphs

CONFIG = Qwen3OmniMoeTalkerCodePredictorConfig(
    vocab_size=48,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    num_code_groups=4,
)


def make_predictor(device: str) -> CodePredictor:
    predictor = CodePredictor(CONFIG).requires_grad_(False).to(device)
    fill_with_dummy_weights(predictor.named_parameters(), bound=0.5)
    return predictor


def arguments(num_rows: int, device: str, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, embedding = torch.randn(2, num_rows, 64, generator=generator)
    rows = torch.arange(num_rows)
    settings = {
        "last_hidden": hidden,
        "code0": rows % 48,
        "code0_embedding": embedding,
        "temperature": (rows % 2).float(),
        "top_k": torch.full((num_rows,), 20),
        "top_p": torch.full((num_rows,), 0.9),
        "seed": rows + seed,
        "frame": rows * 3,
    }
    return {name: value.to(device) for name, value in settings.items()}


def test_nothing_recorded_is_the_predictor() -> None:
    predictor = make_predictor("cpu")
    graphs = CodePredictorGraphs(predictor, [])
    graphs.record(arguments(1, "cpu"))
    for ours, its in zip(
        graphs(**arguments(5, "cpu")), predictor(**arguments(5, "cpu")), strict=True
    ):
        assert torch.equal(ours, its)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.inference_mode()
def test_a_recorded_batch_and_one_that_is_padded_or_too_large_give_the_same_frames() -> None:
    predictor = make_predictor("cuda")
    graphs = CodePredictorGraphs(predictor, [2, 8])
    graphs.record(arguments(1, "cuda"))
    for seed, num_rows in enumerate((8, 5, 2, 1, 11)):
        asked = arguments(num_rows, "cuda", seed)
        codes, frames = graphs(**asked)
        expected_codes, expected_frames = predictor(**asked)
        assert torch.equal(codes, expected_codes)
        assert (frames - expected_frames).abs().max() < 1e-4

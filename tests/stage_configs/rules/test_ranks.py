"""Ranks of a denoiser: how many there may be, and on which GPUs."""

from pathlib import Path

import pytest
from support.parallel_graphs import PICTURES, refusal, written

from omnistage.stage_configs.graph_file import load_graph


@pytest.mark.parametrize(
    ("gpus", "engine", "says"),
    [
        ("[0, 1]", "{}", "gpus: 2 GPUs, but its engine uses 1 (no parallel, no guidance_ranks)"),
        ("[0]", "{guidance_ranks: 2}", "gpus: 1 GPU, but its engine uses 2 (guidance_ranks 2)"),
        ("[0, 1]", "{parallel: {ulysses: 4}}", "gpus: 2 GPUs, but its engine uses 4 (ulysses 4)"),
        (
            "[0, 1]",
            "{parallel: {ring: 2, ulysses: 3}, guidance_ranks: 2}",
            "gpus: 2 GPUs, but its engine uses 12 (ring 2 x ulysses 3 x guidance_ranks 2)",
        ),
        ("[]", "{parallel: 2}", "engine.parallel: must be a mapping of ulysses, ring, tensor"),
        ("[]", "{parallel: {fsdp: 2}}", "engine.parallel.fsdp: unknown; allowed: ulysses, ring"),
        ("[]", "{parallel: {ring: 0}}", "engine.parallel.ring: 0 is no size: an integer of at"),
        ("[]", "{parallel: {ring: true}}", "engine.parallel.ring: True is no size"),
        ("[]", "{parallel: {tensor: 2, ring: 2}}", "engine.parallel.tensor: not with ring"),
        ("[]", "{parallel: {vae: 0}}", "engine.parallel.vae: 0 is no size: an integer of at least"),
        ("[]", "{parallel: {vae: 2}}", "engine.parallel.vae: 2, but its denoiser has no ranks to"),
        (
            "[0, 1]",
            "{parallel: {vae: 4}, guidance_ranks: 2}",
            "engine.parallel.vae: 4, but its denoiser has 2 ranks to share the tiles "
            "(guidance_ranks, ulysses, ring, tensor, shard)",
        ),
        (
            "[0, 1]",
            "{parallel: {ulysses: 4, vae: 2}}",
            "gpus: 2 GPUs, but its engine uses 4 (ulysses 4)",
        ),
        ("[]", "{parallel: {tensor: 2, shard: 2}}", "engine.parallel.shard: not with tensor"),
        (
            "[]",
            "{parallel: {ulysses: 2, ring: 2, shard: 3}}",
            "engine.parallel.shard: must divide the 4 ranks of ulysses x ring",
        ),
        ("[0]", "{parallel: {shard: 2}}", "gpus: 1 GPU, but its engine uses 2 (shard 2)"),
        (
            "[0, 1, 2, 3]",
            "{parallel: {ulysses: 2, shard: 2}}",
            "gpus: 4 GPUs, but its engine uses 2 (ulysses 2)",
        ),
        ("[]", "{parallel: {shard: 2}, offload: layerwise}", "engine.offload: not with several"),
        ("[]", "{parallel: {shard: 2}, compile: true}", "engine.compile: not with parallel.shard"),
        (
            "[]",
            "{parallel: {tensor: 2}, guidance_ranks: 2, compile: true}",
            "engine.compile: not with parallel.tensor",
        ),
        ("[]", "{parallel: {shard: 2}, step_cache: mag}", "engine.step_cache: not with several"),
        ("[]", "{guidance_ranks: 3}", "engine.guidance_ranks: must be 1 or 2, not 3"),
        ("[]", "{guidance_ranks: 2, offload: layerwise}", "engine.offload: not with several ranks"),
        (
            "[]",
            "{parallel: {tensor: 2}, quantization: fp8}",
            "engine.quantization: not with parallel.tensor",
        ),
        ("[]", "{guidance_ranks: 2, step_cache: mag}", "engine.step_cache: not with several ranks"),
        ("[]", "{guidance_ranks: 2, device: cuda:1}", "engine.device: not with several ranks"),
    ],
)
def test_ranks_that_a_denoiser_cannot_have_are_refused(
    tmp_path: Path, gpus: str, engine: str, says: str
) -> None:
    text = PICTURES.replace("[0]", f"{gpus}\n    engine: {engine}")
    said = refusal(tmp_path, text)
    assert said.partition(": ")[2].startswith(f"stages.dit.{says}")
    assert said.startswith(f"{5 if says.startswith('gpus') else 6}: ")


@pytest.mark.parametrize(
    ("gpus", "engine"),
    [
        ("[0, 1]", "{parallel: {ulysses: 2}}"),
        ("[3, 4, 5, 6]", "{parallel: {ring: 2}, guidance_ranks: 2}"),
        ("[0, 1]", "{parallel: {tensor: 2, ulysses: 1}, offload: null}"),
        ("[0, 1, 2, 3]", "{parallel: {ulysses: 2, vae: 4}, guidance_ranks: 2}"),
        ("[0]", "{parallel: {vae: 1}, offload: layerwise}"),
        ("[0]", "{parallel: {}, guidance_ranks: 1, compile: true}"),
        ("[0, 1]", "{guidance_ranks: 2, compile: true, quantization: fp8}"),
        ("[]", "{parallel: {ulysses: 2, ring: 2, tensor: 1}, compile: true}"),
        ("[]", "{parallel: {ulysses: 2}, device: cpu}"),
        ("[0, 1]", "{parallel: {shard: 2}}"),
        ("[0, 1, 2, 3]", "{parallel: {ulysses: 4, shard: 2}}"),
        ("[0, 1, 2, 3]", "{parallel: {ring: 2, shard: 2}, guidance_ranks: 2}"),
    ],
)
def test_ranks_that_use_all_gpus_are_taken(tmp_path: Path, gpus: str, engine: str) -> None:
    load_graph(written(tmp_path, PICTURES.replace("[0]", f"{gpus}\n    engine: {engine}")))

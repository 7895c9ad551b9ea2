"""Engine arguments of ranks, and what a denoiser's class says before its weights load."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import SD3Transformer2DModel

from omnistage.stages.diffusion.blocks.compiled import is_compiled
from omnistage.stages.diffusion.blocks.float8 import Float8Linear
from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.loading.other_weights import modules_of
from omnistage.stages.diffusion.loading.weights import HOST
from omnistage.stages.diffusion.ranks.fit import check_ranks
from omnistage.stages.diffusion.ranks.group import RankPlace
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.worker import RankSpec


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            {"parallel": {"ulyses": 2}},
            "parallel.ulyses: unknown; allowed: ulysses, ring, tensor, shard, vae",
        ),
        ({"parallel": {"vae": 2}}, "parallel.vae: 2, but its denoiser has no ranks to share"),
        ({"guidance_ranks": 4}, "guidance_ranks: must be 1 or 2, not 4"),
        ({"worker_extension_cls": "Class"}, "must be like my.module.Class, not 'Class'"),
        ({"worker_extension_cls": "nowhere.Class"}, "No module named 'nowhere'"),
        ({"worker_extension_cls": "os.path.join"}, "os.path.join is no class"),
    ],
)
def test_a_wrong_argument_is_named(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RankOptions.of(engine)


@pytest.mark.parametrize(
    ("engine", "size", "group_size", "plan"),
    [
        ({}, 1, 1, ""),
        ({"guidance_ranks": 2}, 2, 1, ""),
        ({"parallel": {"ulysses": 4}}, 4, 4, "_cp_plan"),
        ({"parallel": {"ring": 2, "ulysses": 2}, "guidance_ranks": 2}, 8, 4, "_cp_plan"),
        ({"parallel": {"tensor": 2}}, 2, 2, "_tp_plan"),
        ({"parallel": {"vae": 2}, "guidance_ranks": 2}, 2, 1, ""),
        ({"parallel": {"shard": 2}}, 2, 2, ""),
        ({"parallel": {"ulysses": 4, "shard": 2}, "guidance_ranks": 2}, 8, 4, "_cp_plan"),
    ],
)
def test_sizes(engine: dict[str, Any], size: int, group_size: int, plan: str) -> None:
    options = RankOptions.of(engine)
    assert (options.size, options.group_size, options.plan) == (size, group_size, plan)


def test_an_argument_that_is_null_is_as_if_it_were_not_given() -> None:
    assert LoadOptions.of({"parallel": None}).shard == 1
    options = RankOptions.of({"parallel": None, "guidance_ranks": 2})
    assert (options.size, options.ulysses, options.plan) == (2, 1, "")


@pytest.mark.parametrize(("way", "plan"), [("ulysses", "_cp_plan"), ("tensor", "_tp_plan")])
def test_a_denoiser_without_a_plan_is_refused_before_its_weights_load(
    way: str, plan: str, tmp_path: Path
) -> None:
    write_tiny("sd3", tmp_path)
    for weights in tmp_path.rglob("*.safetensors"):
        weights.unlink()
    options = RankOptions.of({"parallel": {way: 2}})
    with pytest.raises(ValueError, match=f"SD3Transformer2DModel has no {plan}"):
        check_ranks(str(tmp_path), LoadOptions(), options)
    check_ranks(str(tmp_path), LoadOptions(), RankOptions.of({"guidance_ranks": 2}))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("AutoencoderVidTok", "whether tiles of AutoencoderVidTok depend on each other"),
        ("AutoencoderKLTemporalDecoder", "the pipeline has no VAE that decodes in tiles"),
    ],
)
def test_a_vae_whose_tiles_cannot_be_shared_is_refused_before_its_weights_load(
    made: str, says: str, tmp_path: Path
) -> None:
    write_tiny("flux", tmp_path)
    for weights in tmp_path.rglob("*.safetensors"):
        weights.unlink()
    options = RankOptions.of({"parallel": {"vae": 2}, "guidance_ranks": 2})
    check_ranks(str(tmp_path), LoadOptions(), options)
    index = tmp_path / "model_index.json"
    index.write_text(index.read_text().replace("AutoencoderKL", made))
    with pytest.raises(ValueError, match=says):
        check_ranks(str(tmp_path), LoadOptions(), options)


def test_ranks_that_share_tiles_load_the_vae_too(tmp_path: Path) -> None:
    write_tiny("flux", tmp_path)
    engine = {"parallel": {"ulysses": 3, "vae": 2}, "dtype": "float32"}
    for rank, has_vae in ((1, True), (2, False)):
        spec = RankSpec(RankPlace(rank, 3, 3, ""), str(tmp_path), "dit", engine)
        assert spec.has_tiles == has_vae
        options = LoadOptions.of({"dtype": "float32"})
        loaded = options.load_denoisers(str(tmp_path), HOST, "dit", spec.has_tiles)
        names = {"transformer", "vae"} if has_vae else {"transformer"}
        assert modules_of(loaded.pipeline).keys() == names


def test_ranks_compile_and_quantize_their_copies_too(tmp_path: Path) -> None:
    write_tiny("qwen-image", tmp_path)
    options = LoadOptions.of({"compile": True, "quantization": "fp8", "dtype": "float32"})
    denoiser: Any = options.load_denoisers(str(tmp_path), HOST).parts.dit["transformer"]
    assert all(is_compiled(block) for block in denoiser.transformer_blocks)
    assert any(isinstance(one, Float8Linear) for one in denoiser.modules())


def test_a_denoiser_that_names_no_blocks_is_not_put_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny("sd3", tmp_path)
    options = RankOptions.of({"parallel": {"shard": 2}})
    check_ranks(str(tmp_path), LoadOptions(), options)
    monkeypatch.setattr(SD3Transformer2DModel, "_no_split_modules", None)
    with pytest.raises(ValueError, match="SD3Transformer2DModel names no blocks"):
        check_ranks(str(tmp_path), LoadOptions(), options)


def test_denoisers_are_found_by_class_or_declared(tmp_path: Path) -> None:
    write_tiny("qwen-image", tmp_path)
    assert [*LoadOptions().denoisers_in(tmp_path)] == ["transformer"]
    declared = LoadOptions(modules={"dit": ["text_encoder.model"]})
    assert [*declared.denoisers_in(tmp_path)] == ["text_encoder"]


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    options = RankOptions.of({"guidance_ranks": 2})
    with pytest.raises(ValueError, match="has 2 ranks, a GPU each; CUDA has 1"):
        check_ranks("nowhere", LoadOptions(), options)
    check_ranks("nowhere", LoadOptions(device="cpu"), options)

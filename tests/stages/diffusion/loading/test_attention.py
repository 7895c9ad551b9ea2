"""Denoisers with a chosen attention back end of Diffusers."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.hooks import FirstBlockCacheConfig
from diffusers.models.attention_dispatch import dispatch_attention_fn
from support.denoising.begun_together import begin_together
from support.tiny_pipelines import Served, Settings, error, result
from torch.utils._python_dispatch import TorchDispatchMode

from omnistage.stages.diffusion.checkpoint import make_tiny, write_tiny
from omnistage.stages.diffusion.loading import loading
from omnistage.stages.diffusion.loading.attention import BACKENDS, set_attention
from omnistage.stages.diffusion.loading.components import Parts, compile_blocks
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions
from omnistage.stages.diffusion.merging.calls import nested
from omnistage.stages.diffusion.merging.learning import first_calls

CPU = torch.device("cpu")
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"  # what torch chooses on a CPU
FLASH_3_PROBLEM = "omnistage.stages.diffusion.blocks.fused.flash_3_problem"
ARGUMENTS = Settings(0, 2, 3.0).arguments("qwen-image")


class Operators(TorchDispatchMode):
    """How often each operator ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attention")
    for name in ("qwen-image", "sd3"):
        write_tiny(name, path / name)
    return path


def fused_calls(loaded: LoadedPipeline) -> int:
    """Of one forward of the denoiser."""
    seen = first_calls(loaded.pipeline, loaded.parts.dit, ARGUMENTS)["transformer"]
    with torch.no_grad(), Operators() as operators:
        loaded.pipeline.transformer(**nested(seen.arguments))
    return int(operators.counts[FUSED])


def picture(loaded: LoadedPipeline) -> torch.Tensor:
    fresh = Settings(0, 2, 3.0).arguments("qwen-image")
    with torch.inference_mode():
        images: torch.Tensor = loaded.pipeline(**fresh).images
    return images


@pytest.mark.parametrize("name", ["native_math", "_native_math"])
@pytest.mark.parametrize("has_step_cache", [False, True])
def test_the_denoiser_uses_the_back_end_and_its_pictures_are_equal(
    name: str, has_step_cache: bool, folder: Path
) -> None:
    usual = LoadOptions().load(str(folder / "qwen-image"))
    chosen = LoadOptions(attention=name).load(str(folder / "qwen-image"))
    num_blocks = len(usual.pipeline.transformer.transformer_blocks)
    assert fused_calls(usual) == num_blocks
    assert fused_calls(chosen) == 0
    if has_step_cache:
        for loaded in (usual, chosen):
            loaded.pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
    assert error(picture(chosen), picture(usual)) < 1e-5


def test_the_copy_of_another_rank_uses_it_as_well(folder: Path) -> None:
    options = LoadOptions(attention="native_math")
    copy = options.load_denoisers(str(folder / "qwen-image"), torch.device("cpu"))
    whole = LoadOptions().load(str(folder / "qwen-image"))
    seen = first_calls(whole.pipeline, whole.parts.dit, ARGUMENTS)["transformer"]
    with torch.no_grad(), Operators() as operators:
        copy.pipeline.transformer(**nested(seen.arguments))
    assert operators.counts["aten::bmm"]
    assert not operators.counts[FUSED]


def test_nothing_else_in_the_process_uses_it() -> None:
    set_attention(Parts.find(make_tiny("qwen-image")), "native_math", CPU)
    rows = torch.randn(1, 8, 2, 16)
    with torch.no_grad(), Operators() as operators:
        dispatch_attention_fn(rows, rows, rows)
    assert operators.counts[FUSED] == 1


def test_it_goes_with_float8(folder: Path) -> None:
    usual = LoadOptions(quantization="fp8").load(str(folder / "qwen-image"))
    options = LoadOptions(quantization="fp8", attention="native_math")
    chosen = options.load(str(folder / "qwen-image"))
    assert fused_calls(chosen) == 0
    assert (picture(chosen) - picture(usual)).abs().mean() < 5e-3


@pytest.mark.parametrize("name", ["fastest", "", "__native", 3])
def test_an_unknown_name_is_refused_with_those_that_are_known(name: Any) -> None:
    with pytest.raises(ValueError, match=f"attention {name!r} is none of .*flash_3, .*sage, "):
        LoadOptions(attention=name)


def test_every_name_is_told_once() -> None:
    assert all(name in BACKENDS for name in ("native", "native_cudnn", "flash_3", "sage"))
    assert not any(name.startswith("_") for name in BACKENDS)
    assert len(set(BACKENDS.values())) == len(BACKENDS)


def test_a_missing_package_is_refused_with_diffusers_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers.models.attention_dispatch._CAN_USE_SAGE_ATTN", False)
    with pytest.raises(ValueError, match=r"attention: sage: .*install `sageattention"):
        LoadOptions(attention="sage").load(str(folder / "qwen-image"))


def test_a_denoiser_whose_attention_takes_no_back_end_is_refused(folder: Path) -> None:
    refused = r"attention: transformer \(SD3Transformer2DModel\) takes none of Diffusers' back ends"
    with pytest.raises(ValueError, match=refused):
        LoadOptions(attention="native_math").load(str(folder / "sd3"))
    with pytest.raises(ValueError, match=r"attention: dit \(Linear\) takes none"):
        set_attention(Parts(dit={"dit": torch.nn.Linear(2, 2)}), "native", CPU)


def test_a_back_end_without_masks_shares_the_forwards_of_texts_of_one_length_alone() -> None:
    """At start the engine finds out that it may not pad; so no forward of several ever fails."""
    served = Served(
        "qwen-image", lambda pipeline: set_attention(Parts.find(pipeline), "native_flash", CPU)
    )
    try:
        masks: list[bool] = []
        served.pipeline.transformer.transformer_blocks[0].register_forward_pre_hook(
            lambda module, args, kwargs: masks.append(
                kwargs.get("encoder_hidden_states_mask", args[2] if args[2:] else None) is not None
            ),
            with_kwargs=True,
        )
        settings = [Settings(seed, 3) for seed in (0, 1, 2, 5)]  # the last has the first's prompt
        expected = [served.expected(one) for one in settings]
        begin_together(served.engine, len(settings))
        jobs = [served.ask(one) for one in settings]
        for job, images in zip(jobs, expected, strict=True):
            assert error(result(job), images) < 1e-5
        assert len(masks) == sum(served.engine.batch_sizes.values())
        assert not any(masks)
        assert served.engine.batch_sizes.keys() == {1, 2}
        prompts = {"prompt": ["red", "a red house by the sea"]}
        two = served.engine.submit(**{**Settings(0, 3).arguments(served.name), **prompts})
        with pytest.raises(ValueError, match="attn_mask"):  # the stage makes it a 400
            result(two)
    finally:
        served.engine.close()


def test_flash_attention_3_of_vllm_is_for_gpus_and_denoisers_with_kernels(folder: Path) -> None:
    with pytest.raises(ValueError, match="attention: vllm_flash_3: transformer: it runs on a GPU"):
        LoadOptions(attention="vllm_flash_3", device="cpu").load(str(folder / "qwen-image"))
    with pytest.raises(ValueError, match="SD3Transformer2DModel is none of QwenImageTransformer2"):
        LoadOptions(attention="vllm_flash_3", device="cpu").load(str(folder / "sd3"))
    for way in ("tensor", "shard"):
        with pytest.raises(ValueError, match=f"vllm_flash_3: not with parallel.{way}"):
            LoadOptions(attention="vllm_flash_3", parallel={way: 2})
    LoadOptions(attention="vllm_flash_3", parallel={"ulysses": 2, "ring": 2})


def test_another_back_end_takes_the_place_of_flash_attention_3(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FLASH_3_PROBLEM, lambda _: None)
    parts = LoadOptions(device="cpu").load(str(folder / "qwen-image")).parts
    set_attention(parts, "vllm_flash_3", torch.device("cuda"))
    assert chosen(parts) == {True}
    set_attention(parts, "native", CPU)
    assert chosen(parts) == {False}


@pytest.mark.parametrize(
    ("options", "problem", "has_flash_3"),
    [
        ({"compile": True}, None, True),
        ({"compile": True}, "too old a GPU", False),
        ({"compile": True, "attention": "native"}, None, False),
        ({}, None, None),
    ],
)
def test_compiled_blocks_have_flash_attention_3_where_it_is_there_and_none_was_asked_for(
    options: dict[str, Any],
    problem: str | None,
    has_flash_3: bool | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FLASH_3_PROBLEM, lambda _: problem)
    monkeypatch.setattr(loading, "compile_blocks", partial(as_on_a_gpu, compile_blocks))
    parts = LoadOptions(device="cpu", **options).load(str(folder / "qwen-image")).parts
    assert chosen(parts) == ({has_flash_3} if has_flash_3 is not None else set())


def as_on_a_gpu(compile_blocks: Any, parts: Parts, device: torch.device, *more: Any) -> None:
    compile_blocks(parts, torch.device("cuda"), *more)


def chosen(parts: Parts) -> set[bool]:
    """Whether the denoiser's blocks attend by FlashAttention 3; those without kernels cannot."""
    (denoiser,) = parts.dit.values()
    processors: list[Any] = [getattr(one, "processor", None) for one in denoiser.modules()]
    return {one.has_flash_3 for one in processors if hasattr(one, "has_flash_3")}

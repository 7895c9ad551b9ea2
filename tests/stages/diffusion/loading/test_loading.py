"""Pipelines from folders: with their weights or random ones, of any class, in their place."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from support.compiling import counted_codes
from support.denoising.begun_together import begin_together
from support.denoising.other_device import OTHER_CPU, places

from omnistage.stages.device.start import DoesNotFit
from omnistage.stages.diffusion.blocks.compiled import is_compiled
from omnistage.stages.diffusion.blocks.single_frames import SingleFrameConv3d
from omnistage.stages.diffusion.checkpoint import MAKERS, write_tiny
from omnistage.stages.diffusion.checkpoint.real_qwen_image import write_real_qwen_image
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading import loading as loading_module
from omnistage.stages.diffusion.loading.components import Parts, compile_blocks
from omnistage.stages.diffusion.loading.dummy_components import empty_components, num_bytes
from omnistage.stages.diffusion.loading.folders import sizes_of
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.request.outputs import to_uint8

SMALL = {"height": 32, "width": 32, "output_type": "pt"}
TIMEOUT_S = 600


class OwnPipeline(QwenImagePipeline):  # type: ignore[misc]  # Diffusers has no types
    """A class that a graph names."""


@pytest.fixture(scope="module", params=list(MAKERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("pipeline") / request.param
    write_tiny(request.param, path)
    return path


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen") / "qwen-image"
    write_tiny("qwen-image", path)
    return path


def ask(seed: int, num_steps: int = 2, **more: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    asked = {"prompt": f"cat {seed}", "num_inference_steps": num_steps, "generator": generator}
    return {**asked, **SMALL, **more}


def made(pipeline: Any, **arguments: Any) -> torch.Tensor:
    with torch.inference_mode():
        images: torch.Tensor = pipeline(**arguments).images
    return images


def not_to_be_called(*_: Any, **__: Any) -> None:
    raise AssertionError("something was loaded")


def modules_of(pipeline: Any) -> dict[str, torch.nn.Module]:
    return {
        name: part
        for name, part in pipeline.components.items()
        if isinstance(part, torch.nn.Module)
    }


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_denoisers_that_will_be_in_parts_wait_on_the_host_and_count_by_their_part(
    load_format: str, qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[dict[str, int]] = []

    def start(*given: Any) -> Fits:
        wanted.append(given[-1])
        return Fits()

    monkeypatch.setattr(loading_module, "Start", start)
    monkeypatch.setattr(loading_module, "device_of", lambda given: torch.device("cpu"))
    for shard in (1, 2):
        options = LoadOptions(load_format=load_format, parallel={"shard": shard}, dtype="float32")
        pipeline = options.read(str(qwen))
        moved: list[torch.nn.Module] = []
        for module in modules_of(pipeline).values():
            monkeypatch.setattr(module, "to", moving(module, moved))
        options.place(pipeline)
        assert (pipeline.transformer in moved) == (shard == 1)
        assert pipeline.vae in moved
        assert pipeline.text_encoder in moved
    whole, parts = wanted
    assert parts == {**whole, "transformer": -(-whole["transformer"] // 2)}


def moving(module: torch.nn.Module, moved: list[torch.nn.Module]) -> Callable[..., None]:
    def to(*_: Any, **__: Any) -> None:
        moved.append(module)

    return to


class Fits:
    def check(self, takes_turns: bool) -> None:
        """It does."""


def test_a_dummy_pipeline_is_the_real_one_but_for_its_weights(folder: Path, tmp_path: Path) -> None:
    real = LoadOptions(dtype="bfloat16").load(str(folder)).pipeline
    empty = shutil.copytree(
        folder, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors")
    )
    dummy = LoadOptions(dtype="bfloat16", load_format="dummy").load(str(empty)).pipeline
    assert type(dummy) is type(real)
    for name, module in modules_of(real).items():
        other = modules_of(dummy)[name]
        assert not other.training
        weights, others = dict(module.named_parameters()), dict(other.named_parameters())
        assert {key: (one.shape, one.dtype) for key, one in weights.items()} == {
            key: (one.shape, one.dtype) for key, one in others.items()
        }
        assert all(one.isfinite().all() for one in others.values())
        buffers, made_here = dict(module.named_buffers()), dict(other.named_buffers())
        assert buffers.keys() == made_here.keys()
        for key, buffer in buffers.items():
            assert torch.equal(buffer, made_here[key])


def test_a_dummy_pipeline_makes_pictures(qwen: Path) -> None:
    pipeline = LoadOptions(load_format="dummy").load(str(qwen)).pipeline
    image = made(pipeline, **ask(0))
    assert image.isfinite().all()
    assert not torch.equal(image, made(pipeline, **ask(1)))


def test_the_real_size_of_qwen_image(tmp_path: Path) -> None:
    write_real_qwen_image(tmp_path)
    parts = empty_components(tmp_path, torch.bfloat16)
    counts = {name: num_bytes(part) // 2 for name, part in parts.items()}
    assert counts == {
        "transformer": 20_430_401_088,
        "text_encoder": 8_292_166_656,
        "vae": 126_892_531,
    }
    assert not any(one.is_meta for part in parts.values() for one in part.buffers())
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_class_by_its_path(qwen: Path) -> None:
    path = f"{__name__}.OwnPipeline"
    for load_format in ("default", "dummy"):
        options = LoadOptions(pipeline_class=path, load_format=load_format)
        assert type(options.load(str(qwen)).pipeline).__name__ == "OwnPipeline"


def test_sizes_are_read_from_the_files(folder: Path) -> None:
    parts = empty_components(folder, torch.bfloat16)
    sizes = sizes_of(folder, torch.bfloat16)
    assert sizes.keys() == parts.keys()
    for name, size in sizes.items():  # some weights are float32 whatever is asked for
        assert size <= num_bytes(parts[name]) <= 2 * size


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_what_does_not_fit_is_refused_before_it_loads(
    load_format: str, qwen: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading_module, "free_bytes", lambda device: 1 << 10)
    monkeypatch.setattr(QwenImagePipeline, "from_pretrained", not_to_be_called)
    monkeypatch.setattr(loading_module, "fill", not_to_be_called)
    with pytest.raises(DoesNotFit) as caught:
        LoadOptions(load_format=load_format).load(str(qwen), stage="painter")
    assert re.fullmatch(
        r"stage painter does not fit on cpu: at least 0\.02 GiB wanted "
        r"\(.*transformer 0\.\d\d.*\), "
        r"0\.00 GiB free; set offload: sequential or layerwise, or take a device with more memory",
        str(caught.value),
    )


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_what_takes_turns_is_told_and_loads(
    load_format: str, qwen: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading_module, "free_bytes", lambda device: 1 << 10)
    with caplog.at_level(logging.INFO):
        LoadOptions(load_format=load_format, offload="sequential").load(str(qwen))
    said = [line for line in caplog.messages if line.startswith("stage dit: cpu, float32, no seed")]
    assert [line.endswith("0.00 GiB free, not all at once") for line in said] == [True]


def test_what_is_wanted_is_never_more_than_what_is_loaded(folder: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        pipeline = LoadOptions(dtype=str(dtype).removeprefix("torch.")).load(str(folder)).pipeline
        held = {name: num_bytes(module) for name, module in modules_of(pipeline).items()}
        sizes = sizes_of(folder, dtype)
        assert sizes.keys() == held.keys()
        assert all(sizes[name] <= held[name] for name in sizes)


def test_a_component_that_is_not_loaded_is_not_counted(qwen: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(qwen, tmp_path / "copied")
    index = json.loads((copied / "model_index.json").read_text())
    index["text_encoder"] = [None, None]
    (copied / "model_index.json").write_text(json.dumps(index))
    assert sizes_of(copied, torch.float32).keys() == {"transformer", "vae"}


@pytest.mark.parametrize("kind", ["sequential", "layerwise"])
def test_requests_of_different_phases_compute_with_copies_that_come_and_go(
    kind: str, qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = LoadOptions().load(str(qwen)).pipeline
    monkeypatch.setattr(loading_module, "device_of", lambda name: OTHER_CPU)
    loaded = LoadOptions(offload=kind).load(str(qwen))
    turns = loaded.turns
    assert turns is not None
    moved = dict(loaded.parts.moved)
    if kind == "layerwise":  # the rest of the denoiser stays on the device
        moved["transformer"] = loaded.pipeline.transformer.transformer_blocks
    homes = {name: places(module.parameters()) for name, module in moved.items()}
    uses: list[tuple[str, str | None, bool]] = []

    def note(leaf: torch.nn.Module, name: str) -> None:
        used = places(leaf.parameters(recurse=False))
        uses.append((name, turns.name, bool(set(used) & set(homes[name]))))

    for name, module in moved.items():
        for leaf in [one for one in module.modules() if not list(one.children())]:
            leaf.register_forward_pre_hook(lambda leaf, _, name=name: note(leaf, name))
    once = ask(0, 2)
    engine = StepBatcher(
        loaded.pipeline, once, {**once, "num_images_per_prompt": 2}, 16, False, loaded.parts.dit
    )
    uses.clear()
    begin_together(engine, 4)
    jobs = [engine.submit(**ask(seed, 2 + seed)) for seed in range(4)]
    for seed, job in enumerate(jobs):
        image = job.result.result(TIMEOUT_S).images
        assert (image - made(bare, **ask(seed, 2 + seed))).abs().max() < 1e-5
    engine.close()
    assert max(engine.batch_sizes) > 1
    assert set(uses) == {(name, name, False) for name in ("text_encoder", "transformer", "vae")}
    turns.end()
    for name in moved if kind == "sequential" else ("text_encoder", "vae"):
        assert places(moved[name].parameters()) == homes[name]


@pytest.mark.engine
def test_compiled_blocks_make_the_same_pictures(qwen: Path) -> None:
    bare = LoadOptions().load(str(qwen)).pipeline
    compiled = LoadOptions(compile=True).load(str(qwen)).pipeline
    assert (made(compiled, **ask(0)) - made(bare, **ask(0))).abs().max() < 1e-5
    assert all(map(is_compiled, compiled.transformer.transformer_blocks))
    assert any(type(one) is SingleFrameConv3d for one in compiled.vae.modules())
    (one,) = to_uint8(made(compiled, **ask(0)))
    assert one.std() > 1


def test_compiled_blocks_stay_compiled_whatever_sizes_and_numbers_of_rows_come() -> None:
    torch.manual_seed(0)
    dit = QwenImageTransformer2DModel(num_layers=2, num_attention_heads=3, joint_attention_dim=32)
    dit.eval()
    with counted_codes(), torch.inference_mode():
        compile_blocks(Parts(dit={"transformer": dit}), torch.device("cpu"))
        for rows, side, length, has_mask in (
            *((1, 8, 30, False), (1, 8, 12, False), (2, 8, 30, False), (2, 8, 12, False)),
            *((1, 8, 31, True), (1, 8, 32, True), (1, 8, 33, True), (3, 8, 30, False)),
            *((1, 16, 30, False), (1, 16, 12, False), (2, 16, 30, False), (2, 16, 31, True)),
            *((1, 16, 31, True), (3, 16, 31, True), (4, 12, 20, True), (4, 12, 20, False)),
        ):
            mask = (torch.arange(length) < length - 1).repeat(rows, 1) if has_mask else None
            dit(
                hidden_states=torch.randn(rows, side * side, 64),
                timestep=torch.rand(rows),
                encoder_hidden_states=torch.randn(rows, length, 32),
                encoder_hidden_states_mask=mask,
                img_shapes=[[(1, side, side)]] * rows,
            )


def test_what_has_no_repeated_blocks_is_not_compiled(qwen: Path) -> None:
    modules = {"dit": ["vae"]}
    with pytest.raises(ValueError, match=r"compile: vae \(AutoencoderKLQwenImage\) has no repeat"):
        LoadOptions(compile=True, modules=modules).load(str(qwen))

"""Modular pipelines of Diffusers in a stage: as the bare ones, alone and several at once."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import SkipLayerGuidance
from PIL import Image
from support.denoising.begun_together import begin_together
from support.models.modular_folders import MODULAR, called, load_bare, write_modular
from support.stages.stage_outputs import Outputs, stage_over
from typer.testing import CliRunner

from omnistage.connectors.chunk import Tensor
from omnistage.server.cli import app
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.kinds import Offer
from omnistage.stages.diffusion.family import pick
from omnistage.stages.diffusion.loading.dummy_components import classes_in, index_of
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.loading.modular import adapter_class
from omnistage.stages.diffusion.makes import offer, signature_of
from omnistage.stages.diffusion.request.outputs import to_uint8
from omnistage.stages.diffusion.request.tasks import Tasks, arguments_of
from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.to_gateway import Step
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened

SIDES = {"height": 32, "width": 32}
INDEX = "modular_model_index.json"
SETTINGS: list[dict[str, Any]] = [
    {"prompt": "a cat", "num_inference_steps": 3, "guidance_scale": 3.0},
    {"prompt": "rain", "num_inference_steps": 4, "guidance_scale": 1.5},
    {"prompt": "two birds", "num_inference_steps": 2, "guidance_scale": 5.0},
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=list(MODULAR))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The name of a tiny pipeline and its modular folder."""
    return request.param, write_modular(request.param, tmp_path_factory.mktemp("modular"))


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_modular("flux", tmp_path_factory.mktemp("flux"))


def more_of(name: str) -> dict[str, Any]:
    return {**SIDES, "num_frames": 5} if name == "wan" else {**SIDES}


def pixels_of(outputs: Outputs, name: str) -> Any:
    return outputs.pixels(name).astype(int)


async def test_requests_alone_and_three_at_once_equal_the_bare_modular_pipeline(
    written: tuple[str, Path],
) -> None:
    name, folder = written
    output = "video" if name == "wan" else "image"
    stage, outputs = stage_over(folder, **more_of(name))
    await stage.start()

    async def ask(index: int, run: str) -> None:
        body = {**SETTINGS[index], **more_of(name)}
        request = Request(Draw(body), [output], seed=index)
        await stage.serve(Opened(f"{run}-{index}", request))

    for index in range(3):
        await ask(index, "alone")
    stage._made.engine.batch_sizes.clear()
    begin_together(stage._made.engine, 3)
    await asyncio.gather(*(ask(index, "together") for index in range(3)))
    sizes = stage._made.engine.batch_sizes
    await stage.close()
    bare = load_bare(folder)
    for index, settings in enumerate(SETTINGS):
        generator = torch.Generator().manual_seed(index)
        wanted = np.stack(to_uint8(called(bare, **settings, **more_of(name), generator=generator)))
        for run in ("alone", "together"):
            difference = np.abs(pixels_of(outputs, f"{run}-{index}") - wanted)
            assert difference.max() <= 1, (run, index)
            steps = [one.message for one in outputs.chunks[f"{run}-{index}"]]
            numbers = [(one.step, one.num_steps) for one in steps if isinstance(one, Step)]
            total = settings["num_inference_steps"]
            assert numbers == [(step, total) for step in range(1, total + 1)]
    assert max(sizes) > 1, "no forward was shared"


def test_its_signature_is_what_its_blocks_take(written: tuple[str, Path]) -> None:
    name, folder = written
    made = adapter_class(folder)
    bare = load_bare(folder)
    inputs = {one for one in bare.blocks.input_names if one is not None}
    known = arguments_of(made)
    assert made.__name__ == MODULAR[name]
    assert known.keys() - {"self"} == inputs | {"guidance_scale"}
    with pytest.raises(TypeError, match=f"{MODULAR[name]} takes no argument heigth"):
        LoadOptions(device="cpu").read(str(folder))(prompt="a cat", heigth=32)


def test_the_gateway_knows_what_a_folder_makes_without_loading_it(
    written: tuple[str, Path],
) -> None:
    """By the documentation of the blocks; the stage reads the blocks themselves."""
    name, folder = written
    checkpoint = Checkpoint(str(folder))
    output = "video" if name == "wan" else "image"
    assert offer(checkpoint, {}) == Offer(frozenset({output}))
    assert signature_of(adapter_class(folder)).output == output
    picked = pick(checkpoint, 1)
    assert picked is not None
    assert picked.file.name == "diffusers.yaml"
    with pytest.raises(ValueError, match=r"extra\.heigth: .* takes no heigth; did you mean height"):
        offer(checkpoint, {"extra": ["heigth"]})


def test_the_index_has_the_components_of_the_folder(written: tuple[str, Path]) -> None:
    _, folder = written
    components = {one.name for one in folder.iterdir() if one.is_dir()}
    assert classes_in(folder).keys() == components


async def test_an_image_and_a_mask_choose_other_blocks_of_the_same_pipeline(
    tmp_path: Path,
) -> None:
    folder = write_modular("qwen-image", tmp_path)
    stage, outputs = stage_over(folder, **SIDES)
    await stage.start()
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    body = {**SETTINGS[0], "num_inference_steps": 4, "strength": 0.6, **SIDES}
    mask = np.zeros((32, 32), np.uint8)
    mask[:16] = 255
    media = [GivenMedium("image", "image0"), GivenMedium("mask", "mask")]
    tensors = {"image0": Tensor.from_numpy(picture), "mask": Tensor.from_numpy(mask)}
    await asyncio.gather(
        *(
            stage.serve(
                Opened(name, Request(Draw(body, media[:count]), ["image"], seed=1), tensors)
            )
            for name, count in (("edit", 1), ("masked", 2))
        )
    )
    await stage.close()
    bare = load_bare(folder)
    given: dict[str, Any] = {"image": Image.fromarray(picture)}
    masks: dict[str, Any] = {"mask_image": Image.fromarray(mask), "output_type": "pil"}
    for name, more in (("edit", {}), ("masked", masks)):
        generator = torch.Generator().manual_seed(1)
        (wanted,) = to_uint8(called(bare, **body, **given, **more, generator=generator))
        assert np.abs(pixels_of(outputs, name)[0] - wanted).max() <= 1, name


def test_dummy_weights_and_parts_that_are_left_out(flux: Path) -> None:
    dummy = LoadOptions(device="cpu", load_format="dummy").read(str(flux))
    assert dummy.transformer.config.num_layers == load_bare(flux).transformer.config.num_layers
    assert not torch.equal(*(one.transformer.x_embedder.weight for one in (dummy, load_bare(flux))))
    without = LoadOptions(device="cpu").read(str(flux), without=["text_encoder"])
    assert without.text_encoder is None
    assert without.transformer is not None
    task = Tasks.find(without, ()).of("image")
    assert task is not None
    assert task.pipeline is without


def changed(folder: Path, tmp_path: Path, **entries: Any) -> Path:
    """A copy of a folder whose index says something else."""
    made = tmp_path / "changed"
    shutil.copytree(folder, made)
    index = json.loads((made / INDEX).read_text())
    (made / INDEX).write_text(json.dumps({**index, **entries}))
    return made


def test_a_moved_folder_is_loaded_from_where_it_is(flux: Path, tmp_path: Path) -> None:
    index = json.loads((flux / INDEX).read_text())
    index["vae"][2]["pretrained_model_name_or_path"] = "nobody/has-this"
    moved = changed(flux, tmp_path, vae=index["vae"])
    assert LoadOptions(device="cpu").read(str(moved)).vae is not None


def test_a_component_that_is_only_on_the_hub_is_refused_by_name(flux: Path, tmp_path: Path) -> None:
    index = json.loads((flux / INDEX).read_text())
    index["vae"][2]["pretrained_model_name_or_path"] = "nobody/has-this"
    moved = changed(flux, tmp_path, vae=index["vae"])
    shutil.rmtree(moved / "vae")
    with pytest.raises(ValueError, match=r"its component vae is in nobody/has-this/vae and cannot"):
        LoadOptions(device="cpu").read(str(moved))


def test_code_of_the_folder_is_not_run(flux: Path, tmp_path: Path) -> None:
    made = changed(flux, tmp_path)
    config = {"auto_map": {"ModularPipelineBlocks": "block.Blocks"}}
    (made / "modular_config.json").write_text(json.dumps(config))
    (made / "block.py").write_text("raise SystemExit('the code was run')")
    with pytest.raises(ValueError, match="its blocks are code of the folder, which is not run"):
        LoadOptions(device="cpu").read(str(made))


@pytest.mark.parametrize("name", ["NobodysModularPipeline", "FluxPipeline", "os.system", None])
def test_a_class_that_is_no_modular_pipeline_is_refused(
    name: Any, flux: Path, tmp_path: Path
) -> None:
    made = changed(flux, tmp_path, _class_name=name)
    with pytest.raises(ValueError, match="is no modular pipeline of Diffusers"):
        adapter_class(made)
    assert offer(Checkpoint(str(made)), {}) is None


def test_a_guider_that_hooks_into_the_denoiser_is_refused(tmp_path: Path) -> None:
    folder = write_modular("sd3", tmp_path)
    pipeline = LoadOptions(device="cpu").read(str(folder))
    modular = pipeline.modular
    guider = SkipLayerGuidance(skip_layer_guidance_layers=[0])
    modular.update_components(guider=guider)
    with pytest.raises(ValueError, match="guider: SkipLayerGuidance changes the denoiser"):
        adapter_class(folder)(modular)


def test_serve_and_check_know_a_modular_folder(flux: Path, tmp_path: Path) -> None:
    graph = tmp_path / "graph.yaml"
    lines = [f"model: {flux}", "stages: {dit: {kind: diffusers}}", "outputs: {image: dit}"]
    graph.write_text("\n".join(lines))
    for command in (["serve", str(flux), "--dry-run"], ["check", str(graph)]):
        result = CliRunner().invoke(app, command)
        assert (result.exit_code, "dit" in result.output) == (0, True), result.output
    assert index_of(flux)["_class_name"] == "FluxModularPipeline"

"""ControlNets that cannot stand beside a pipeline are refused before anything loads."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.pick import find_graph
from omnistage.stages.diffusion.loading.loading import LoadOptions

SDXL, UNION = "ControlNetModel", "ControlNetUnionModel"
SIZES = {"block_out_channels": [32, 64], "cross_attention_dim": 64}


def folder(path: Path, file: str, **content: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / file).write_text(json.dumps(content))
    return path


def graph(path: Path, model: Path, engine: dict[str, Any]) -> str:
    file = path / "graph.yaml"
    stage = {"kind": "diffusers", "engine": engine}
    document = {"stages": {"dit": stage}, "outputs": {"image": "dit"}, "model": str(model)}
    file.write_text(json.dumps(document))
    return str(file)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with ControlNets, and with what is none."""
    for name, made in (
        ("sdxl", {"_class_name": SDXL, **SIZES}),
        ("large", {"_class_name": SDXL, "cross_attention_dim": 2048}),
        ("union", {"_class_name": UNION}),
        ("flux", {"_class_name": "FluxControlNetModel"}),
        ("qwen", {"_class_name": "QwenImageControlNetModel"}),
        ("unet", {"_class_name": "UNet2DConditionModel"}),
        ("bert", {"architectures": ["Bert"]}),
    ):
        folder(tmp_path / name, "config.json", **made)
    (tmp_path / "empty").mkdir()
    return tmp_path


def model(place: Path, name: object, **more: Any) -> Path:
    path = folder(place / "model", "model_index.json", _class_name=name, **more)
    folder(path / "unet", "config.json", **SIZES)
    return path


NOT_ONE = "is not the folder of a ControlNet"
REFUSED: list[tuple[Any, Any, str]] = [
    ("StableDiffusionXLPipeline", "missing", NOT_ONE),
    ("StableDiffusionXLPipeline", "empty", NOT_ONE),
    ("StableDiffusionXLPipeline", "unet", NOT_ONE),
    ("StableDiffusionXLPipeline", "bert", NOT_ONE),
    ("StableDiffusionXLPipeline", ["sdxl", "missing"], NOT_ONE),
    ("StableDiffusionXLPipeline", [], "must be a folder, or a list of folders"),
    ("StableDiffusionXLPipeline", 7, "must be a folder, or a list of folders"),
    ("StableDiffusionXLPipeline", [["sdxl"]], "must be a folder, or a list of folders"),
    (
        "StableDiffusionXLPipeline",
        "flux",
        "is a FluxControlNetModel; StableDiffusionXLPipeline takes "
        "ControlNetModel or ControlNetUnionModel",
    ),
    ("StableDiffusionXLPipeline", ["sdxl", "union"], "ControlNetUnionModel, not both"),
    ("StableDiffusionXLPipeline", "large", "its cross_attention_dim is 2048, the pipeline's is 64"),
    ("FluxPipeline", "sdxl", "is a ControlNetModel; FluxPipeline takes FluxControlNetModel"),
    ("QwenImagePipeline", ["qwen", "qwen"], "takes one ControlNet; there are 2"),
    ("ChromaPipeline", "sdxl", "ChromaPipeline has no class with ControlNets"),
    ("NobodysPipeline", "sdxl", "NobodysPipeline has no class with ControlNets"),
    (["my.module", "Own"], "sdxl", "has no class with ControlNets"),
]


@pytest.mark.parametrize(("name", "given", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_folder_that_does_not_fit_is_refused(
    name: Any, given: Any, message: str, place: Path
) -> None:
    def placed(one: Any) -> Any:
        return str(place / one) if isinstance(one, str) else one

    nets = [placed(one) for one in given] if isinstance(given, list) else placed(given)
    path = model(place, name)
    with pytest.raises(GraphError, match=re.escape(message)) as raised:
        find_graph(graph(place, path, {"controlnet": nets}))
    assert str(raised.value).startswith(f"stages.dit: {path}: controlnet: ")
    with pytest.raises(ValueError, match=re.escape(message)):
        LoadOptions.of({"controlnet": nets}).read(str(path))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"controlnet": ["diffusers", SDXL]}, "the pipeline's folder has a ControlNet"),
        ({}, "not with pipeline_class"),
    ],
)
def test_beside_another_choice_of_the_class_it_is_refused(
    more: dict[str, Any], message: str, place: Path
) -> None:
    engine = {"controlnet": str(place / "sdxl")}
    if not more:
        engine["pipeline_class"] = "diffusers.StableDiffusionXLPipeline"
    path = model(place, "StableDiffusionXLPipeline", **more)
    with pytest.raises(GraphError, match=message):
        find_graph(graph(place, path, engine))


def test_beside_a_modular_pipeline_it_is_refused(place: Path) -> None:
    path = folder(place / "m", "modular_model_index.json", _class_name="FluxModularPipeline")
    with pytest.raises(GraphError, match="controlnet: only beside a pipeline with a model_index"):
        find_graph(graph(place, path, {"controlnet": str(place / "flux")}))


@pytest.mark.parametrize("given", ["sdxl", ["sdxl", "sdxl"], "union"])
def test_one_that_fits_is_announced(given: Any, place: Path) -> None:
    nets = [str(place / one) for one in given] if isinstance(given, list) else str(place / given)
    path = model(place, "StableDiffusionXLPipeline")
    scales = {"call_defaults": {"guess_mode": True}}  # of the class with ControlNets alone
    found = find_graph(graph(place, path, {"controlnet": nets, **scales}))
    assert found.outputs == {"image": "dit"}
    with pytest.raises(GraphError, match="takes no guess_mode"):
        find_graph(graph(place, path, scales))

"""DreamID-Omni's checkpoint: recognised by its family, and refused where it is not whole."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.dreamid_omni.checkpoint import layout
from omnistage.stages.dreamid_omni.checkpoint.tiny import write_tiny_dreamid_omni
from omnistage.stages.dreamid_omni.family import TINY_BYTES, pick
from omnistage.stages.dreamid_omni.pipeline import DreamIDOmniPipeline

CLASS = "omnistage.stages.dreamid_omni.pipeline.DreamIDOmniPipeline"
FILES = (layout.FUSION, layout.AUDIO_VAE, layout.VOCODER, layout.VIDEO_VAE, layout.TEXT_ENCODER)


@pytest.fixture
def copied(tiny_dreamid_omni: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dreamid_omni, tmp_path / "copied"))


@pytest.mark.parametrize("fusion", [layout.FUSION, layout.OTHER_FUSION])
@pytest.mark.parametrize("num_gpus", [0, 1])
def test_a_tiny_one_is_served_anywhere(num_gpus: int, fusion: str, copied: Path) -> None:
    (copied / fusion).parent.mkdir(exist_ok=True)
    (copied / layout.FUSION).rename(copied / fusion)
    picked = pick(Checkpoint(str(copied)), num_gpus)
    assert picked is not None
    assert picked.file.name == "dreamid_omni_tiny.yaml"


def test_the_published_size_has_a_graph_for_a_gpu(copied: Path) -> None:
    with (copied / layout.FUSION).open("r+b") as file:
        file.truncate(TINY_BYTES)  # a sparse file: only its size counts
    picked = pick(Checkpoint(str(copied)), 1)
    assert picked is not None
    assert picked.file.name == "dreamid_omni.yaml"


def test_another_folder_is_no_dreamid_omni(tiny_text: Path) -> None:
    assert pick(Checkpoint(str(tiny_text)), 0) is None
    assert pick(Checkpoint("Qwen/Qwen-Image"), 1) is None


def test_another_seed_has_other_weights(tiny_dreamid_omni: Path, tmp_path: Path) -> None:
    write_tiny_dreamid_omni(tmp_path, 1)
    one, other = (load_file(folder / layout.FUSION) for folder in (tiny_dreamid_omni, tmp_path))
    assert one.keys() == other.keys()
    assert not any(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", [*FILES, layout.TOKENIZER])
def test_a_folder_without_one_of_its_files_is_refused_by_name(name: str, copied: Path) -> None:
    path = copied / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=name):
        DreamIDOmniPipeline.from_pretrained(copied)


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("video_model.head.head.bias", None, "there is no weight video_model.head.head.bias"),
        ("video_model.more", (1,), "there is an unknown weight video_model.more"),
        ("audio_model.head.head.bias", (3,), r"audio_model.head.head.bias is of shape \[3\]"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_of_another_model_are_refused_by_name(
    name: str, shape: tuple[int, ...] | None, problem: str, copied: Path
) -> None:
    weights = load_file(copied / layout.FUSION)
    weights.pop(name, None)
    if shape is not None:
        weights[name] = torch.zeros(shape)
    save_file(weights, copied / layout.FUSION, {"head_size": "32"})
    with pytest.raises(ValueError, match=problem):
        DreamIDOmniPipeline.from_pretrained(copied)


def test_weights_take_the_wanted_dtype(tiny_dreamid_omni: Path) -> None:
    pipeline = DreamIDOmniPipeline.from_pretrained(tiny_dreamid_omni, torch.bfloat16)
    for module in (one for one in pipeline.components.values() if isinstance(one, torch.nn.Module)):
        assert {one.dtype for one in module.parameters()} == {torch.bfloat16}


def test_random_weights_of_its_size_are_refused_at_start(tiny_dreamid_omni: Path) -> None:
    with pytest.raises(ValueError, match="dummy"):
        LoadOptions(pipeline_class=CLASS, load_format="dummy").load(str(tiny_dreamid_omni))


@pytest.mark.parametrize("name", ["dreamid_omni.yaml", "dreamid_omni_tiny.yaml"])
def test_its_graphs_are_valid(name: str, tiny_dreamid_omni: Path) -> None:
    graph = load_graph(GRAPHS / name, str(tiny_dreamid_omni))
    assert graph.stages["dit"].engine["pipeline_class"] == CLASS

"""BAGEL's checkpoint: recognised by its family, and refused where it is not whole."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stages.bagel.checkpoint.tiny import write_tiny_bagel
from omnistage.stages.bagel.family import pick
from omnistage.stages.bagel.pipeline import BagelPipeline
from omnistage.stages.diffusion.loading.folders import sizes_of
from omnistage.stages.diffusion.loading.loading import LoadOptions

CLASS = "omnistage.stages.bagel.pipeline.BagelPipeline"


@pytest.fixture
def copied(tiny_bagel: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bagel, tmp_path / "copied"))


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Put weights into a checkpoint, or take them out of it."""
    path = folder / "ema.safetensors"
    weights = {**load_file(path), **changes}
    save_file({name: one for name, one in weights.items() if one is not None}, path)


@pytest.mark.parametrize(
    ("num_gpus", "graph"), [(0, "bagel_tiny.yaml"), (1, "bagel_tiny.yaml")], ids=["CPU", "GPU"]
)
def test_a_tiny_one_is_served_anywhere(num_gpus: int, graph: str, tiny_bagel: Path) -> None:
    picked = pick(Checkpoint(str(tiny_bagel)), num_gpus)
    assert picked is not None
    assert picked.file.name == graph


def test_the_published_size_has_a_graph_for_a_gpu(copied: Path) -> None:
    path = copied / "llm_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 3584}))
    picked = pick(Checkpoint(str(copied)), 1)
    assert picked is not None
    assert picked.file.name == "bagel.yaml"


def test_another_type_is_no_bagel(tiny_text: Path) -> None:
    assert pick(Checkpoint(str(tiny_text)), 0) is None


def test_another_seed_has_other_weights(tiny_bagel: Path, tmp_path: Path) -> None:
    write_tiny_bagel(tmp_path / "other", 1)
    for name in ("ema.safetensors", "ae.safetensors"):
        one, other = (load_file(folder / name) for folder in (tiny_bagel, tmp_path / "other"))
        assert one.keys() == other.keys()
        assert all(one[n].shape == other[n].shape for n in one)
        assert not all(torch.equal(one[n], other[n]) for n in one)


def test_tables_of_places_may_be_missing(copied: Path, tiny_bagel: Path) -> None:
    names = ("latent_pos_embed.pos_embed", "vit_pos_embed.pos_embed")
    change_weights(copied, **dict.fromkeys(names))
    one, other = (BagelPipeline.from_pretrained(folder) for folder in (copied, tiny_bagel))
    for name in ("transformer", "image_reader"):
        states = (getattr(each, name).state_dict() for each in (one, other))
        assert all(map(torch.equal, *(state.values() for state in states)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"llm2vae.bias": None}, "there is no weight llm2vae.bias"),
        ({"language_model.lm_head.bias": torch.zeros(1)}, "lm_head.bias is a weight of no BAGEL"),
        ({"connector.fc1.bias": torch.zeros(3)}, r"fc1.* of shape \[3\], not \[64\]|\[3\], not"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_that_are_not_bagels_are_refused_by_name(
    changes: dict[str, torch.Tensor | None], problem: str, copied: Path
) -> None:
    change_weights(copied, **changes)
    with pytest.raises(ValueError, match=problem):
        BagelPipeline.from_pretrained(copied)


def test_interpolated_places_are_refused(copied: Path) -> None:
    path = copied / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "interpolate_pos": True}))
    with pytest.raises(ValueError, match="interpolate_pos"):
        BagelPipeline.from_pretrained(copied)


def test_weights_take_the_wanted_dtype(tiny_bagel: Path) -> None:
    pipeline = BagelPipeline.from_pretrained(tiny_bagel, torch.bfloat16)
    assert pipeline.transformer.llm2vae.weight.dtype == torch.bfloat16
    assert pipeline.vae.dtype == torch.bfloat16
    made = pipeline("a cat", height=16, width=16, num_inference_steps=1, output_type="np")
    assert made.images.shape == (1, 16, 16, 3)


def test_weights_of_a_folder_without_an_index_are_counted_together(tiny_bagel: Path) -> None:
    stored = [load_file(tiny_bagel / name) for name in ("ae.safetensors", "ema.safetensors")]
    number = sum(one.numel() for weights in stored for one in weights.values())
    assert sizes_of(tiny_bagel, torch.bfloat16) == {"weights": 2 * number}


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"load_format": "dummy"}, "dummy.*model_index.json"), ({"compile": True}, "repeated blocks")],
    ids=["dummy", "compile"],
)
def test_an_option_that_needs_what_it_has_not_is_refused(
    options: dict[str, Any], problem: str, tiny_bagel: Path
) -> None:
    with pytest.raises(ValueError, match=problem):
        LoadOptions(pipeline_class=CLASS, **options).load(str(tiny_bagel))


def test_layers_that_all_modules_share_stay_where_modules_take_turns(tiny_bagel: Path) -> None:
    call = {"prompt": "a cat", "height": 32, "width": 32, "num_inference_steps": 2}
    made = []
    for offload in (None, "sequential"):
        pipeline = LoadOptions(pipeline_class=CLASS, offload=offload).load(str(tiny_bagel)).pipeline
        drawn = pipeline(**call, generator=torch.Generator().manual_seed(1), output_type="pt")
        made.append(drawn.images)
    assert torch.equal(*made)

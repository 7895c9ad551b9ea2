"""The denoiser's parts of a checkpoint, the states that they take, and the graph of a folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnistage.stage_configs.pick import pick_graph
from omnistage.stages.mammothmoda2.blank import blank_states
from omnistage.stages.mammothmoda2.pipeline import MammothModa2Pipeline, divided


@pytest.fixture(scope="module")
def pipeline(tiny_mammothmoda2: Path) -> Any:
    made = MammothModa2Pipeline.from_pretrained(tiny_mammothmoda2)
    made.set_progress_bar_config(disable=True)
    return made


def states(model: Path, *lengths: int) -> dict[str, Any]:
    """Return random arguments of prompts; the last three rows of each are its image's."""
    blank = blank_states(str(model), {})
    size, generator = blank["prompt_embeds"].shape[-1], torch.Generator().manual_seed(1)
    made: dict[str, Any] = {"num_image_rows": 3}
    for name in ("prompt", "negative_prompt"):
        rows = [torch.randn(length, size, generator=generator) for length in lengths]
        made[f"{name}_embeds"] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        made[f"{name}_attention_mask"] = mask.long()
    return made


def drawn(pipeline: Any, arguments: dict[str, Any], **more: Any) -> torch.Tensor:
    call = {"height": 64, "width": 64, "num_inference_steps": 2, "output_type": "pt"}
    generator = torch.Generator().manual_seed(3)
    made: torch.Tensor = pipeline(**{**call, **arguments, **more}, generator=generator).images
    return made


@pytest.mark.parametrize("guidance", [1.0, 9.0])
def test_an_image_is_the_same_beside_one_of_a_longer_text(
    guidance: float, pipeline: Any, tiny_mammothmoda2: Path
) -> None:
    both = states(tiny_mammothmoda2, 9, 14)
    first = {
        name: value[:1, :9] if isinstance(value, torch.Tensor) else value
        for name, value in both.items()
    }
    together = drawn(pipeline, both, guidance_scale=guidance)
    alone = drawn(pipeline, first, guidance_scale=guidance)
    assert torch.allclose(together[0], alone[0], atol=1e-4)
    assert not torch.allclose(together[1], alone[0], atol=1e-1)


def test_states_are_divided_where_the_image_s_begin() -> None:
    rows = torch.arange(10.0).view(2, 5, 1)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    texts, images = divided(rows, mask, 2)
    assert images[..., 0].tolist() == [[3, 4], [6, 7]]
    assert texts.mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert texts.states[..., 0][texts.mask.bool()].tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"height": 40}, "multiples of 16"),
        ({"num_image_rows": None}, "num_image_rows is missing"),
        ({"negative_prompt_embeds": None}, "negative_prompt_embeds is missing"),
    ],
)
def test_calls_that_cannot_be_are_refused(
    more: dict[str, Any], message: str, pipeline: Any, tiny_mammothmoda2: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        drawn(pipeline, {**states(tiny_mammothmoda2, 9), **more})


def test_a_checkpoint_without_a_weight_is_refused_by_its_name(
    tiny_mammothmoda2: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_mammothmoda2, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["gen_transformer.x_embedder.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"x_embedder\.weight"):
        MammothModa2Pipeline.from_pretrained(folder)


@pytest.mark.parametrize(
    ("size", "num_gpus", "expected"),
    [(64, 1, "mammothmoda2_tiny"), (4096, 1, "mammothmoda2"), (4096, 0, "mammothmoda2_tiny")],
)
def test_a_checkpoint_is_known_by_its_type_and_size(
    size: int, num_gpus: int, expected: str, tmp_path: Path
) -> None:
    config = {"model_type": "mammothmoda2", "llm_config": {"text_config": {"hidden_size": size}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert pick_graph(str(tmp_path), num_gpus).file.stem == expected

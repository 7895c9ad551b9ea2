"""Other weights are read from a pipeline's folder or from tensors, and fit or change nothing."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.denoising.controlled import Controlled
from support.tiny_pipelines import quiet, result

from omnistage.stages.device.shared_weights import shared_weights
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.loading.other_weights import OtherWeights, modules_of
from omnistage.stages.diffusion.loading.weights import Weights
from omnistage.stages.diffusion.ranks.ranks import end_stage
from omnistage.stages.worker.failure import RequestError

Make = Callable[..., Controlled]
OTHER_SEED = 5


def weights_of(pipeline: Any, *parts: str) -> dict[str, torch.Tensor]:
    """All that these parts have, by default of all parts, as a program would give them."""
    return {
        f"{part}.{name}": tensor
        for part, module in modules_of(pipeline).items()
        for name, tensor in module.state_dict().items()
        if not parts or part in parts
    }


@pytest.fixture
def given(tmp_path: Path) -> Iterator[Callable[[Mapping[str, torch.Tensor]], str]]:
    """A function that writes names and tensors as `Omni.load_weights` does, and says where."""
    folders = []

    def write(weights: Mapping[str, torch.Tensor]) -> str:
        folder = shared_weights(weights.items(), None, str(tmp_path))
        folders.append(folder)
        return str(folder.__enter__())

    yield write
    for folder in folders:
        folder.__exit__(None, None, None)


Given = Callable[[Mapping[str, torch.Tensor]], str]


def test_names_and_tensors_of_all_parts_are_as_a_start_from_the_other_checkpoint(
    controlled: Make, given: Given
) -> None:
    one, other = controlled("qwen-image"), quiet(make_tiny("qwen-image", OTHER_SEED))
    one.obey("load_weights", path=given(weights_of(other)))
    assert torch.equal(result(one.ask({}, 1)), one.picture_of(other, 1))


def test_parts_that_are_not_given_stay_as_they_are(controlled: Make, given: Given) -> None:
    one, other = controlled("qwen-image"), make_tiny("qwen-image", OTHER_SEED)
    before = weights_of(one.pipeline, "text_encoder", "vae")
    kept = {name: tensor.clone() for name, tensor in before.items()}
    one.obey("load_weights", path=given(weights_of(other, "transformer")))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in before.items())
    expected = weights_of(other, "transformer")
    now = weights_of(one.pipeline, "transformer")
    assert all(torch.equal(now[name], expected[name]) for name in expected)


def changed(weights: dict[str, torch.Tensor], change: str) -> dict[str, torch.Tensor]:
    name = "transformer.proj_out.weight"
    if change == "unknown":
        return {**weights, "transformer.proj_in.weight": weights[name]}
    if change == "part":
        return {**weights, "unet.proj_out.weight": weights[name]}
    if change == "shape":
        return {**weights, name: weights[name][:-1]}
    return {one: tensor for one, tensor in weights.items() if one != name}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("unknown", "there is no transformer.proj_in.weight"),
        ("part", "unet.proj_out.weight is of no part; there are .*text_encoder"),
        ("shape", r"transformer.proj_out.weight is \(3, 16\), not \(4, 16\)"),
        ("missing", "it has no transformer.proj_out.weight"),
    ],
)
def test_tensors_that_do_not_fit_change_nothing(
    change: str, says: str, controlled: Make, given: Given
) -> None:
    one = controlled("sd3")
    before = {name: tensor.clone() for name, tensor in weights_of(one.pipeline).items()}
    other = weights_of(make_tiny("sd3", OTHER_SEED))
    rows, columns = other["transformer.proj_out.weight"].shape
    says = says.replace("3, 16", f"{rows - 1}, {columns}").replace("4, 16", f"{rows}, {columns}")
    with pytest.raises(RequestError, match=says) as caught:
        one.obey("load_weights", path=given(changed(other, change)))
    assert (caught.value.status, caught.value.param) == (400, "path")
    now = weights_of(one.pipeline)
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())


def test_a_broken_file_of_tensors_is_refused(controlled: Make, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(RequestError, match="cannot be read"):
        controlled("sd3").obey("load_weights", path=str(tmp_path))


class Tied(torch.nn.Module):
    """A weight with two names, and a buffer that checkpoints have."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.table = torch.nn.Linear(2, 3, bias=False)
        self.head = torch.nn.Linear(2, 3, bias=False)
        self.head.weight = self.table.weight
        torch.nn.init.constant_(self.table.weight, value)
        self.register_buffer("mean", torch.full((2,), value))
        self.register_buffer("made", torch.ones(2), persistent=False)


class Pipeline:
    def __init__(self, value: float) -> None:
        self.components = {"tied": Tied(value), "scheduler": object()}


@pytest.mark.parametrize("given_name", ["table", "head"])
def test_a_weight_with_two_names_is_given_by_either_and_buffers_come_too(
    given_name: str, tmp_path: Path
) -> None:
    pipeline: Any = Pipeline(1.0)
    weights = Weights(pipeline, lambda folder: pytest.fail("it is no pipeline's folder"))
    fresh = {f"tied.{given_name}.weight": torch.full((3, 2), 2.0), "tied.mean": torch.zeros(2)}
    save_file(fresh, tmp_path / "model.safetensors")
    weights.load(str(tmp_path))
    tied = pipeline.components["tied"]
    assert tied.head.weight is tied.table.weight
    assert torch.equal(tied.head.weight, torch.full((3, 2), 2.0))
    assert torch.equal(tied.mean, torch.zeros(2))
    assert torch.equal(tied.made, torch.ones(2))


def test_a_rank_reads_the_parts_that_it_has(tmp_path: Path) -> None:
    save_file({"vae.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    parts = {"tied": Tied(1.0)}
    others = OtherWeights(parts, lambda _: pytest.fail("it is no pipeline's"), is_whole=False)
    assert others.of(str(tmp_path)) == {}


def test_weights_that_were_dropped_come_again_from_the_last_folder(
    controlled: Make, tmp_path: Path
) -> None:
    one, other = controlled("qwen-image"), quiet(make_tiny("qwen-image", OTHER_SEED))
    other.save_pretrained(tmp_path / "other")
    one.obey("load_weights", path=str(tmp_path / "other"))
    one.obey("sleep", level=2, tags=None)
    one.obey("wake", tags=None)
    assert torch.equal(result(one.ask({}, 1)), one.picture_of(other, 1))
    one.obey("load_weights", path=None)
    assert torch.equal(result(one.ask({}, 1)), one.picture_of(other, 1))


def test_weights_whose_folder_is_gone_are_not_dropped(
    controlled: Make, given: Given, tmp_path: Path
) -> None:
    one, other = controlled("sd3"), quiet(make_tiny("sd3", OTHER_SEED))
    with shared_weights(weights_of(other, "transformer").items(), None, str(tmp_path)) as path:
        one.obey("load_weights", path=str(path))
    with pytest.raises(RequestError, match="of transformer came from, is gone") as caught:
        one.obey("sleep", level=2, tags=None)
    assert caught.value.param == "level"
    asleep = one.obey("sleep", level=2, tags=["vae"])
    assert asleep == {"asleep": ["vae"]}
    assert "transformer" in one.obey("sleep", level=1, tags=None)["asleep"]
    one.obey("wake", tags=None)
    one.bare.transformer = other.transformer
    assert torch.equal(result(one.ask({}, 1)), one.expected(1))


def test_weights_that_are_half_exchanged_end_the_stage(
    controlled: Make, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, said = controlled("sd3"), list[str]()
    num_set = 0

    def fail(weights: Weights, tensor: torch.Tensor, fresh: torch.Tensor) -> None:
        nonlocal num_set
        num_set += 1
        if num_set == 3:
            raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Weights, "_set", fail)
    monkeypatch.setattr(one.control, "_on_failure", said.append)
    with pytest.raises(torch.OutOfMemoryError):
        one.obey("load_weights", path=given(weights_of(make_tiny("sd3", OTHER_SEED))))
    assert said == ["weights are half exchanged: no room"]


def test_what_ends_a_stage_is_what_ends_ranks(controlled: Make) -> None:
    assert controlled("sd3").control._on_failure is end_stage

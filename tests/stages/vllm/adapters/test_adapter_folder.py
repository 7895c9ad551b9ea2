"""What is wrong with an adapter's folder is said before an engine gets it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models.lora_folders import LAYER
from support.models.lora_folders import write_lora_folder as write

from omnistage.stages.vllm.adapters.adapter_folder import adapter_rank
from omnistage.stages.worker.failure import RequestError

BASE = {f"{LAYER}.weight": (8, 16), "model.norm.weight": (16,), "lm_head.qweight": (4, 4)}


def test_one_that_fits_has_its_largest_rank(tmp_path: Path) -> None:
    assert adapter_rank(write(tmp_path), 8, BASE) == 2
    assert adapter_rank(write(tmp_path, rank_pattern={"v_proj": 4}), 8, BASE) == 4
    assert adapter_rank(write(tmp_path, module="a.q_proj", sizes=(3, 5)), 8, {}) == 2


def test_a_thinkers_modules_are_known_by_transformers_names_too(tmp_path: Path) -> None:
    base = {f"thinker.{name}": shape for name, shape in BASE.items()}
    assert adapter_rank(write(tmp_path), 8, base) == 2
    with pytest.raises(RequestError, match="does not fit"):
        adapter_rank(write(tmp_path, sizes=(8, 8)), 8, base)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def broken(name: str, content: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_text(content)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without("adapter_config.json"), "has no adapter_config.json"),
        (without("adapter_model.safetensors"), "has no adapter_model.safetensors"),
        (broken("adapter_config.json", "{"), "is no JSON"),
        (broken("adapter_config.json", "[]"), "has no object"),
        (broken("adapter_model.safetensors", "x" * 64), "cannot be read"),
        (broken("adapter_model.safetensors", ""), "cannot be read"),
        (lambda folder: write(folder, r=16), "has rank 16; its engine's max_lora_rank is 8"),
        (lambda folder: write(folder, rank_pattern={"a": 9}), "has rank 9"),
        (lambda folder: write(folder, r=0), "no rank r"),
        (lambda folder: write(folder, r="2"), "no rank r"),
        (lambda folder: write(folder, peft_type="IA3"), "type IA3"),
        (lambda folder: write(folder, target_modules=[]), "no target_modules"),
        (lambda folder: write(folder, sizes=(8, 8)), "lora_A.weight is (2, 8), "),
        (lambda folder: write(folder, sizes=(16, 4)), "lora_B.weight is (4, 2), "),
        (
            lambda folder: write(folder, module="model.layers.7.self_attn.q_proj"),
            "model.layers.7.self_attn.q_proj, which the model does not have",
        ),
    ],
)
def test_what_is_wrong_is_named(spoil: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    write(tmp_path)
    spoil(tmp_path)
    with pytest.raises(RequestError) as caught:
        adapter_rank(str(tmp_path), 8, BASE)
    assert said in caught.value.message
    assert (caught.value.status, caught.value.param) == (400, "path")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is no folder of this machine"):
        adapter_rank(str(tmp_path / "none"), 8, BASE)

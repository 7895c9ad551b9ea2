"""The memory that models need: read, refused, and the same as in docs/memory.md."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import GRAPHS
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.models.memory_needs import NoNeeds, all_needs, needs_of, read_needs

MEMORY = (Path(__file__).parents[3] / "docs" / "memory.md").read_text()
OMNI = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
FILES = [path for _, family in FAMILIES.usable() for path in family.memory]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_needs_are_of_the_stages_of_both_graphs(path: Path) -> None:
    needs = read_needs(path)
    for name in (needs.graphs.shared, needs.graphs.split):
        graph = load_graph(GRAPHS / name)
        assert [one.name for one in needs.stages] == list(graph.order)


def test_weights_and_caches_are_those_of_the_layouts() -> None:
    for one in needs_of(OMNI).stages:
        (shown,) = re.findall(
            rf"^\| (?:the )?{one.name}'s weights \|.*\| ([\d.]+) \|$", MEMORY, re.M
        )
        assert one.weights_gb == float(shown)
        if one.kv_bytes:
            assert f"{one.kv_bytes:,}" in MEMORY


def test_a_model_without_needs_is_refused_with_those_that_have_some() -> None:
    known = rf"the memory that some/model needs is not known; .*: {OMNI}\. "
    with pytest.raises(NoNeeds, match=known + "Lay out others in a graph file: "):
        needs_of("some/model")


def test_a_folder_is_known_by_its_configuration_and_a_tiny_one_is_another(tmp_path: Path) -> None:
    text = {"hidden_size": 2048, "num_hidden_layers": 48, "num_experts": 128}
    config = {"model_type": "qwen3_omni_moe", "enable_audio_output": True}
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "thinker_config": {"text_config": text}})
    )
    assert needs_of(str(tmp_path)) == needs_of(OMNI)
    small = {**text, "hidden_size": 64}
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "thinker_config": {"text_config": small}})
    )
    with pytest.raises(NoNeeds, match="is not known"):
        needs_of(str(tmp_path))


def test_the_configuration_is_that_of_the_real_model() -> None:
    from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config

    config: Any = real_config().to_dict()
    for key, value in needs_of(OMNI).config.items():
        found = config
        for part in key.split("."):
            found = found[part]
        assert found == value, key


def test_a_file_that_is_wrong_says_where(tmp_path: Path) -> None:
    wrong = yaml.safe_load(FILES[0].read_text())
    wrong["stages"][0]["weights_gb"] = 0
    path = tmp_path / "memory.yaml"
    path.write_text(yaml.safe_dump(wrong))
    with pytest.raises(NoNeeds, match=r"memory\.yaml: stages\.0\.weights_gb: "):
        read_needs(path)
    with pytest.raises(NoNeeds, match=r"none\.yaml: cannot be read"):
        read_needs(tmp_path / "none.yaml")


def test_there_are_needs() -> None:
    assert OMNI in {name for one in all_needs() for name in one.models}

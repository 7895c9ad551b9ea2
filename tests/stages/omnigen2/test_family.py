"""The graph that a folder of OmniGen2 gets."""

import json
from pathlib import Path

import pytest

from omnistage.stage_configs.pick import pick_graph


@pytest.mark.parametrize(
    ("name", "hidden_size", "num_gpus", "expected"),
    [
        ("OmniGen2Pipeline", 48, 1, "omnigen2_tiny.yaml"),
        ("OmniGen2Pipeline", 2520, 1, "omnigen2.yaml"),
        ("OmniGen2Pipeline", 2520, 0, "omnigen2_tiny.yaml"),
        ("OmniGenPipeline", 2520, 1, "diffusers.yaml"),
    ],
)
def test_a_pipeline_of_its_class_is_served_in_two_stages(
    name: str, hidden_size: int, num_gpus: int, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "transformer").mkdir()
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": name}))
    config = json.dumps({"hidden_size": hidden_size})
    (tmp_path / "transformer" / "config.json").write_text(config)
    assert pick_graph(str(tmp_path), num_gpus).file.name == expected

"""The graph that a folder of GLM-Image gets."""

import json
from pathlib import Path

import pytest

from omnistage.stage_configs.pick import pick_graph


def folder_of(path: Path, name: str, hidden_size: int) -> str:
    (path / "vision_language_encoder").mkdir()
    (path / "model_index.json").write_text(json.dumps({"_class_name": name}))
    config = {"text_config": {"hidden_size": hidden_size}}
    (path / "vision_language_encoder" / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    ("name", "hidden_size", "num_gpus", "expected"),
    [
        ("GlmImagePipeline", 64, 1, "glm_image_tiny.yaml"),
        ("GlmImagePipeline", 4096, 1, "glm_image.yaml"),
        ("GlmImagePipeline", 4096, 0, "glm_image_tiny.yaml"),
        ("FluxPipeline", 4096, 1, "diffusers.yaml"),
    ],
)
def test_a_pipeline_of_its_class_is_served_in_two_stages(
    name: str, hidden_size: int, num_gpus: int, expected: str, tmp_path: Path
) -> None:
    picked = pick_graph(folder_of(tmp_path, name, hidden_size), num_gpus)
    assert picked.file.name == expected

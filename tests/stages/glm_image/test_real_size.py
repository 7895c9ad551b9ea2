"""GLM-Image at its real sizes: what its graph is checked and planned with."""

from pathlib import Path

import pytest
import torch
from support.models.real_sizes import check_graph_is_accepted

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.diffusion.loading.dummy_components import empty_components, num_bytes
from omnistage.stages.glm_image.checkpoint.real_size import write_real_glm_image

GRAPH = GRAPHS / "glm_image.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glm") / "real"
    write_real_glm_image(folder)
    return folder


def test_the_sizes_are_those_of_the_graphs_memory(folder: Path) -> None:
    """Billions of weights, by which the graph file counts what fits on its GPU."""
    parts = empty_components(folder, torch.bfloat16)
    billions = {name: round(num_bytes(part) / 2e9, 1) for name, part in parts.items()}
    assert billions == {
        "transformer": 6.9,
        "text_encoder": 0.2,
        "vision_language_encoder": 10.1,
        "vae": 0.4,
    }
    assert not list(folder.rglob("*.safetensors"))


@pytest.mark.parametrize("command", ["check", "plan"])
def test_its_graph_is_accepted(command: str, folder: Path) -> None:
    check_graph_is_accepted(command, GRAPH, folder, "glm_image.prior", "diffusers")

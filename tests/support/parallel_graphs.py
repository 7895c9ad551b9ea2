"""Graphs with parallel sizes, written to files."""

from pathlib import Path

import pytest

from omnistage.stage_configs.graph_file import GraphError, load_graph

PICTURES = """\
model: some/model
stages:
  dit:
    kind: diffusers
    gpus: [0]
outputs: {image: dit}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "graph.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    """What is said of a graph, behind its file's name."""
    path = written(folder, text)
    with pytest.raises(GraphError) as caught:
        load_graph(path)
    return str(caught.value).removeprefix(f"{path}:")

"""Models at their real sizes, without weights: what a graph file's memory is counted of."""

import shutil
from pathlib import Path
from typing import Any

from torch.nn import Module
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.pick import pick_graph

GIB = 2**30
GPU_GIB = 79  # that a GPU of 80 GB has
BYTES = 2  # of a number in bfloat16


def copy_without_weights(tiny: Path, folder: Path) -> None:
    """Copy all of a tiny checkpoint but its weights."""
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))


def num_weights(module: Module) -> int:
    """Return how many numbers a module has, those that it has twice once."""
    return sum(one.numel() for one in module.parameters())


def token_bytes(config: Any) -> int:
    """Return what keys and values of a token take, by a text model's configuration."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * size * BYTES)


def check_graph_is_accepted(command: str, graph: Path, folder: Path, *kinds: str) -> None:
    """Have `check` or `plan` read the graph that a model's folder gets on one GPU."""
    assert pick_graph(str(folder), 1).file == graph
    model = [] if command == "check" else ["--model", str(folder)]
    result = CliRunner().invoke(cli.app, [command, str(graph), *model], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert all(kind in result.output for kind in kinds)
    assert "error" not in result.output

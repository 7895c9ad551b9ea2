"""Imports go server -> stages -> connectors, never back; bench imports none of them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BANNED_ABOVE = {
    "connectors": (
        "omnistage.stages",
        "omnistage.server",
        "omnistage.bench",
        "torch",
        "vllm",
        "pickle",
    ),
    "stages": ("omnistage.server", "omnistage.bench"),
    "bench": (
        "omnistage.server",
        "omnistage.stages",
        "omnistage.connectors",
        "torch",
        "vllm",
        "transformers",
    ),
    "server": ("torch", "vllm", "transformers"),
}

BARE_PIPELINE = Path("bench/bare.py")  # what a server is compared with; loaded when it is asked for


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("layer", BANNED_ABOVE)
def test_a_layer_imports_nothing_above_it(layer: str) -> None:
    for path in (ROOT / layer).rglob("*.py"):
        place = path.relative_to(ROOT)
        banned = BANNED_ABOVE[layer]
        if place == BARE_PIPELINE:
            banned = tuple(name for name in banned if name != "torch")
        wrong = [name for name in imports(path) if is_below(name, banned)]
        assert not wrong, f"{place} imports {wrong}"


def test_only_the_seam_imports_the_engine() -> None:
    """Model files may take vLLM's layers and its own models; its engine is for stages/vllm."""
    engine = ("vllm.v1.engine", "vllm.engine", "vllm.entrypoints", "vllm.AsyncEngineArgs")
    for path in (ROOT / "stages").rglob("*.py"):
        if path.is_relative_to(ROOT / "stages" / "vllm"):
            continue
        wrong = [name for name in imports(path) if is_below(name, engine)]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("module", ["omnistage.server.cli", "omnistage.server.serve"])
def test_the_gateway_loads_no_model_library(module: str) -> None:
    program = (
        f"import sys, {module};"
        "sys.exit(' '.join({'torch', 'vllm', 'transformers', 'diffusers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert done.returncode == 0

"""Names the models and the graph files that are served."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from judging import (
    MIN_SAME_FIRST_CODES,
    NUM_FRAMES,
)

from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.rules.mps import ALLOW, SHARE


@dataclass(frozen=True)
class Subject:
    """The model to check: its writers by name, its graph files, a voice, and frames of an
    answer.
    """

    tiny: str
    graph: str
    tiny_graph: str
    voice: str
    num_frames: int = NUM_FRAMES
    least_in_bf16: float = MIN_SAME_FIRST_CODES

    def write(self, folder: Path, is_tiny: bool) -> None:
        """A tiny checkpoint, or the real sizes without weights."""
        writers = FAMILIES.part(self.tiny, lambda family: family.tiny)
        if is_tiny:
            resolve_name(writers.write)(folder, 0)
            (folder / "words.txt").write_text("one two three four\n")
        else:
            resolve_name(writers.write_real_size)(folder)


SUBJECTS = {
    "qwen3_omni": Subject("qwen3-omni", "qwen3_omni_1gpu.yaml", "qwen3_omni_tiny.yaml", "ethan"),
    "qwen2_5_omni": Subject(
        "qwen2.5-omni", "qwen2_5_omni_1gpu.yaml", "qwen2_5_omni_tiny.yaml", "chelsie", 200, 0.0
    ),
}


def reference_graph(graph: dict[str, Any], folder: Path) -> Path:
    """The same stages and sizes, without graphs or compiled kernels."""
    stages = {name: dict(stage) for name, stage in graph["stages"].items()}
    for stage in stages.values():
        environment = {**stage.get("environment", {})}
        environment.pop(SHARE, None)
        stage["environment"] = environment
        if stage["kind"].split(".")[-1] in ("thinker", "talker"):
            engine = {**stage["engine"], "enforce_eager": True}
            engine.pop("compilation_config", None)
            stage["engine"] = engine
    path = folder / "reference.yaml"
    path.write_text(yaml.safe_dump({**graph, "stages": stages}))
    return path


def in_float32(graph: dict[str, Any]) -> None:
    """Compute all in float32, with caches of as many bytes as before: for half as many requests."""
    for stage in graph["stages"].values():
        engine = stage["engine"]
        engine["dtype"] = "float32"
        if "max_num_seqs" in engine:
            engine["max_num_seqs"] = max(1, engine["max_num_seqs"] // 2)


def with_share(graph: dict[str, Any], share: float) -> dict[str, Any]:
    """The graph with a share of the multiprocessors for its thinker: to see this check fail."""
    os.environ[ALLOW] = "1"
    thinker = {**graph["stages"]["thinker"], "environment": {SHARE: share}}
    return {**graph, "stages": {**graph["stages"], "thinker": thinker}}


def with_replicas(graph: dict[str, Any], gpus: Sequence[int]) -> dict[str, Any]:
    """The graph with each stage once for each of these GPUs; those of one GPU share its memory.

    The tiny models' stages, which name none, are as many on the CPU.
    """
    most = max(map(gpus.count, gpus))
    stages = {}
    for name, stage in graph["stages"].items():
        engine = dict(stage["engine"])
        for shared in ("kv_cache_memory_bytes", "gpu_memory_utilization", "max_num_seqs"):
            if shared in engine:
                engine[shared] = type(engine[shared])(engine[shared] / most)
        where = {"gpus": [[gpu] for gpu in gpus]} if "gpus" in stage else {"replicas": len(gpus)}
        stages[name] = {**stage, **where, "engine": engine}
    return {**graph, "stages": stages}


def replicas_of(text: str) -> list[int]:
    """The GPUs of `--replicas`."""
    return [int(gpu) for gpu in text.split(",") if gpu]


def hidden_problem(checkout: Path) -> str | None:
    """Why Python would run this checkout's code in place of another's, if it would."""
    package = checkout / ".pkg" / "omnistage" / "__init__.py"
    if package.exists():
        return None
    return f"{package} is missing: without it this checkout's package hides the earlier one"


@dataclass(frozen=True)
class Candidate:
    """A graph file that is served, streams of its speed table, and by which checkout's code."""

    path: Path
    levels: str
    checkout: Path | None = None
    is_deterministic: bool = False
    has_talks: bool = False

    @classmethod
    def of(cls, asked: str, usual_levels: str) -> "Candidate":
        """Reads a user's argument: a file, or a file and its levels."""
        path, has_levels, levels = asked.partition("=")
        return cls(Path(path), levels if has_levels else usual_levels)

    def before(self, checkout: Path) -> "Candidate":
        """The graph file of the same name in a checkout of an earlier state."""
        return Candidate(checkout / "stage_configs" / self.path.name, self.levels, checkout)

    def graph(self) -> dict[str, Any]:
        """Returns what its file says, and that it is deterministic, if it is to be."""
        read: dict[str, Any] = yaml.safe_load(self.path.read_text())
        return {**read, "deterministic": True} if self.is_deterministic else read

    @property
    def name(self) -> str:
        """Returns what its tables and its log are called."""
        more = "-before" if self.checkout else "-deterministic" if self.is_deterministic else ""
        return self.path.stem + more

"""The architectures of models that vLLM knows, read before anything loads.

They are read from vLLM's source: to import it would take seconds and load all of torch.
"""

import ast
from collections.abc import Collection
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.families import FAMILIES, KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.packages import VLLM_PACKAGES, installed

REGISTRY = Path("model_executor", "models", "registry.py")  # below vLLM's package
AUTO_CLASSES = Path("models", "auto", "modeling_auto.py")  # below transformers', which names all
TABLES = "_MODELS"  # how the names of the registry's tables end
GONE = ("_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS")  # tables of what it lacks
PLUGINS = "vllm.general_plugins"  # packages that may teach vLLM more, by their entry points
KNOWN_PLUGINS = ("omnistage", *VLLM_PACKAGES)  # those that come with us and with vLLM


def unknown_architectures(graph: StageGraph) -> list[str]:
    """Returns a sentence for each stage whose model vLLM cannot run; none where that is unknown.

    Only stages that run a checkpoint's own architecture are looked at: families bring classes of
    their own. A model with code of its own, and one that transformers knows, may run all the same.
    """
    known = vllm_architectures()
    if not known or has_foreign_plugins():
        return []
    sentences = []
    for stage in graph.stages.values():
        if not runs_own_architecture(stage.kind):
            continue
        config = Checkpoint(stage.model or graph.model).config
        names = config.get("architectures") or []
        if not names or "auto_map" in config or _transformers_knows(names):
            continue
        if not known.intersection(names):
            vllm = f"vLLM {installed(*VLLM_PACKAGES)}"
            what = " or ".join(map(str, names))
            sentences.append(f"stage {stage.name}: {vllm} does not know {what} (config.json)")
    return sentences


def runs_own_architecture(kind: str) -> bool:
    """Returns whether stages of a kind load the class that the model's config.json names."""
    if "vllm" not in KINDS[kind].needs:
        return False
    owners = FAMILIES.owners(lambda family: family.kinds)[kind]
    return not any(FAMILIES.load(name).vllm_models for name in owners)


@cache
def vllm_architectures() -> frozenset[str]:
    """Returns those of the vLLM that is installed; none if it keeps them elsewhere."""
    return frozenset(
        key.value
        for found in ast.parse(source_of("vllm", REGISTRY)).body
        if isinstance(found, ast.Assign) and isinstance(found.value, ast.Dict)
        if isinstance(name := found.targets[0], ast.Name)
        if name.id.endswith(TABLES) and name.id not in GONE
        for key in found.value.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    )


def source_of(package: str, file: Path) -> str:
    """Returns the text of a package's file; empty without the package, or the file."""
    spec = find_spec(package)
    places = [] if spec is None else spec.submodule_search_locations or []
    found = [path for place in places if (path := Path(place) / file).is_file()]
    return found[0].read_text("utf-8") if found else ""


def has_foreign_plugins() -> bool:
    """Returns whether packages of others may teach vLLM architectures."""
    found = entry_points(group=PLUGINS)
    return any(one.dist is None or one.dist.name not in KNOWN_PLUGINS for one in found)


def _transformers_knows(names: Collection[str]) -> bool:
    """Returns whether transformers has one of these classes, which vLLM may then run."""
    table = source_of("transformers", AUTO_CLASSES)
    return any(f'"{name}"' in table for name in names)

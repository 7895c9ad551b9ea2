"""Who may import whom. Each table is exact: an arrow that it has and nobody needs fails as well."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import Family

ROOT = Path(__file__).parent.parent
OURS = "omnistage"
MODEL_LIBRARIES = ("torch", "vllm", "transformers", "diffusers")
WEB = ("fastapi", "starlette", "uvicorn")
PAGE_LIBRARIES = ("gradio", "openai")
HEAVY = (*MODEL_LIBRARIES, *PAGE_LIBRARIES, "ray")
HTTP_CLIENTS = ("httpx", "httpx2", "httpcore", "aiohttp", "requests", "urllib", "http")

MESSAGES, BENCH, DEMO = (f"{OURS}.{name}" for name in ("stages.messages", "bench", "demo"))

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


# Files


def test_no_files_import_each_other_in_a_circle() -> None:
    assert not circle(modules())


@pytest.mark.parametrize(
    "last",
    [
        "import first",
        "from first import name",
        "def load():\n    from first import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import first",
    ],
)
def test_a_circle_is_found_wherever_its_imports_are(tmp_path: Path, last: str) -> None:
    codes = {"first": "import second", "second": "from third import name", "third": last}
    paths = {name: tmp_path / f"{name}.py" for name in codes}
    for name, path in paths.items():
        path.write_text(codes[name])
    assert set(circle(paths)) == codes.keys()
    paths["third"].write_text("import fourth")
    imports.cache_clear()
    assert not circle(paths)


# Root folders


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_those_below_it(layer: str) -> None:
    banned = [f"{OURS}.{other}" for other in LAYERS if other not in (layer, *LAYERS[layer])]
    refuse(layer, banned)


def test_the_gateway_talks_to_stages_over_the_wire_only() -> None:
    """It shares with them what processes say to each other, and no more."""
    giving, weights = WEIGHTS_GIVEN
    for path in files("server"):
        shared = (MESSAGES, weights) if place(path).startswith(giving) else (MESSAGES,)
        names = {name for name in imports(path) if not is_below(name, shared)}
        names -= {f"{OURS}.stages"}  # the package in which the messages are
        beside = () if place(path).startswith(COMMAND_LINE) else (BENCH, DEMO)
        wrong = sorted(name for name in names if is_below(name, (f"{OURS}.stages", *beside)))
        assert not wrong, f"{place(path)}: {', '.join(wrong)}"


@pytest.mark.parametrize("layer", ["server", "stage_configs", "connectors", "bench", "demo"])
def test_only_stages_import_model_libraries(layer: str) -> None:
    refuse(layer, MODEL_LIBRARIES, but=(BARE_PIPELINE,))


def test_the_wire_carries_no_pickles() -> None:
    pickles = ("pickle", "dill", "cloudpickle")
    refuse("connectors", (*pickles, "multiprocessing.connection"))
    refuse("stages/diffusion/ranks", pickles)


def test_the_page_asks_a_server_by_the_sdk_only() -> None:
    refuse("demo", HTTP_CLIENTS)


@pytest.mark.parametrize(
    "module", ["omnistage.server.cli", "omnistage.server.serve", "omnistage.server.offline"]
)
def test_the_gateway_loads_no_library_of_models_or_of_the_page(module: str) -> None:
    program = f"import sys, {module};sys.exit(' '.join({set(HEAVY)} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert done.returncode == 0


@pytest.mark.parametrize("layer", LAYERS)
def test_ray_is_known_where_it_is_asked_for_only(layer: str) -> None:
    refuse(layer, ("ray",), but=OF_RAY)


# The gateway's rooms


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_gateway_imports_what_its_table_says(room: str) -> None:
    assert arrows("server", room) == set(ROOMS[room])


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_gateway_imports_nothing_that_is_above_all_rooms(room: str) -> None:
    refuse(f"server/{room}", [f"{OURS}.server.{name}" for name in BESIDE["server"]])


@pytest.mark.parametrize("room", TASKS)
def test_a_room_of_the_tasks_imports_what_its_table_says(room: str) -> None:
    assert arrows("server/tasks", room) == set(TASKS[room])
    above = [f"{OURS}.server.tasks.{name}" for name in BESIDE["server/tasks"]]
    refuse(f"server/tasks/{room}", above)


@pytest.mark.parametrize("room", ["common", "runtime", "tasks"])
def test_what_answers_requests_knows_nothing_of_http(room: str) -> None:
    refuse(f"server/{room}", WEB)


def test_tasks_load_no_web_framework() -> None:
    """Neither they nor what they import: another door needs none."""
    names = [f"{OURS}.{place(path)[:-3].replace('/', '.')}" for path in files("server/tasks")]
    found = f"{set(WEB)} & set(sys.modules)"
    program = f"import sys, {', '.join(names)};sys.exit(' '.join({found}) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stderr.strip(), done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("name", "users"),
    [("stage_link.OwnedStage", {"fleet", "running", "supervisor"}), ("runtime", set())],
    ids=["a stage to write", "fleet and flights together"],
)
def test_of_the_runtime_only_these_import(name: str, users: set[str]) -> None:
    """A stage's record has one writer, and nothing below holds both fleet and flights."""
    wanted = f"{OURS}.server.runtime.{name}"
    assert {path.stem for path in files("server/runtime") if wanted in imports(path)} == users


def test_nothing_outside_the_runtime_writes_a_stages_record() -> None:
    refuse("server", [f"{OURS}.server.runtime.stage_link.OwnedStage"], but=("server/runtime/",))


def test_bodies_are_checked_in_one_place() -> None:
    """No other file makes an answer of what pydantic says of a field; a command line is no body."""
    refuse("server", ("pydantic.ValidationError",), but=(FIELDS, "server/cli/guard.py"))
    assert "pydantic.ValidationError" in imports(ROOT / FIELDS)


# Stages


def families() -> list[str]:
    """Every folder below stages/ that is not shared is a model family."""
    return sorted(rooms_in("stages") - SHARED.keys())


def test_there_are_families() -> None:
    assert {"diffusion", "qwen3_omni", "qwen_image"} <= set(families())


@pytest.mark.parametrize("family", families())
def test_a_family_imports_no_other(family: str) -> None:
    assert not arrows("stages", family) & set(families())


@pytest.mark.parametrize("folder", SHARED)
def test_what_families_share_imports_what_its_table_says(folder: str) -> None:
    assert arrows("stages", folder) == set(SHARED[folder])


@pytest.mark.parametrize("folder", ["messages", "worker"])
def test_the_process_of_a_stage_imports_no_model_library(folder: str) -> None:
    refuse(f"stages/{folder}", MODEL_LIBRARIES)


def test_only_the_seam_imports_the_engine() -> None:
    """Model files may take vLLM's layers and its own models; its engine is for stages/vllm."""
    engine = ("vllm.v1.engine", "vllm.engine", "vllm.entrypoints", "vllm.AsyncEngineArgs")
    refuse("stages", engine, but=("stages/vllm/",))


@pytest.mark.parametrize(
    "folder", ["stages/device", "stages/diffusion", "stages/vocoder", "stages/checkpoint"]
)
def test_what_needs_no_engine_imports_no_vllm(folder: str) -> None:
    refuse(folder, ("vllm", f"{OURS}.stages.vllm"), but=(ATTENTION_OF_VLLM,))
    refuse(ATTENTION_OF_VLLM, (f"{OURS}.stages.vllm",))


@pytest.mark.parametrize("room", DIFFUSION)
def test_a_room_of_the_diffusion_stage_imports_what_its_table_says(room: str) -> None:
    assert arrows("stages/diffusion", room) == set(DIFFUSION[room])
    refuse(f"stages/diffusion/{room}", (f"{OURS}.stages.diffusion.stage",))


@pytest.mark.parametrize("room", VLLM)
def test_a_room_of_the_bridge_to_vllm_imports_what_its_table_says(room: str) -> None:
    assert arrows("stages/vllm", room) == set(VLLM[room])
    above = [name for name in BESIDE["stages/vllm"] if name != VERSIONS_OF_VLLM]
    refuse(f"stages/vllm/{room}", [f"{OURS}.stages.vllm.{name}" for name in above])


def test_what_differs_between_versions_of_vllm_is_below_all_rooms() -> None:
    refuse(f"stages/vllm/{VERSIONS_OF_VLLM}.py", [f"{OURS}.stages.vllm"])


# Families, which the others find by entry points

# What asks the registry, and so names none of them.
ASKING = (
    *("stage_configs", "connectors", "bench", "server/cli", "stages/vllm/plugin.py"),
    *(f"stages/{folder}" for folder in ("messages", "worker", "device")),
)
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


@pytest.mark.parametrize("place_of_code", ASKING)
def test_what_asks_the_registry_names_no_family(place_of_code: str) -> None:
    folder = ROOT / place_of_code
    for path in files(place_of_code) if folder.is_dir() else [folder]:
        if place(path) not in NAMING:
            assert not naming(path, names_of_families()), place(path)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("import omnistage.stages.diffusion.stage", ["stages.diffusion"]),
        ("from omnistage.stages.vocoder import decoder", []),
        ("PLACE = 'stages/diffusion'", ["stages/diffusion"]),
        ("KIND = 'vllm.embedding'", ["vllm.embedding"]),
        ("KIND = 'qwen3_omni.thinker'", ["qwen3_omni", "qwen3_omni.thinker"]),
        ("HELP = 'such as flux'", ["flux"]),
        ("HELP = 'for stages of kind diffusers'", ["diffusers"]),
        ("HELP = 'a diffusion stage of --diffusion-load-format'", []),
        ("OUTPUTS = 'text', 'embedding'", []),
        ("ENGINE = 'vllm'", []),
    ],
)
def test_a_familys_name_is_found_in_code(tmp_path: Path, code: str, named: list[str]) -> None:
    path = tmp_path / "asking.py"
    path.write_text(code)
    assert naming(path, names_of_families()) == named


def test_every_folder_of_a_family_registers_it() -> None:
    registered = {
        path
        for family in own_families().values()
        for path in (
            *(kind.path for kind in family.kinds.values()),
            *(one.write for one in family.tiny.values()),  # of a family that is a pipeline
        )
    }
    for folder in [*families(), "vllm"]:
        assert any(path.startswith(f"{OURS}.stages.{folder}.") for path in registered), folder


def test_every_dotted_path_of_a_family_leads_to_a_file() -> None:
    for family in own_families().values():
        tiny = [path for one in family.tiny.values() for path in (one.write, one.write_real_size)]
        kinds = [kind.path for kind in family.kinds.values()]
        named = (family.benches, family.vllm_models, family.pipelines)
        others = [path for one in named for path in one.values()]
        for path in filter(None, [*kinds, *tiny, *others]):
            module, _, name = path.partition(":")
            assert find_spec(module) is not None, path
            assert name.isidentifier(), path


def test_what_registers_families_and_connectors_imports_no_library_of_models() -> None:
    program = (
        "import sys\n"
        "from omnistage.connectors import CONNECTORS\n"
        "from omnistage.stage_configs.families import FAMILIES\n"
        "assert [*FAMILIES.usable()] and [*CONNECTORS.usable()]\n"
        "assert not FAMILIES.problems() + CONNECTORS.problems()\n"
        f"sys.exit(' '.join({set(HEAVY)} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert done.returncode == 0


# Tests


def test_no_test_changes_the_clock_of_the_process() -> None:
    """Event loops of the session's servers run beside it: one would sleep until that clock."""
    changed = re.compile(r"""setattr\(\s*(time\b|["'](.+\.)?time\.)""")
    found = [place(path) for path in files("tests") if changed.search(path.read_text("utf-8"))]
    assert not found, f"replace the module's `time` instead: {found}"


# The tables themselves


@pytest.mark.parametrize("table", [LAYERS, ROOMS, TASKS, DIFFUSION, VLLM, SHARED])
def test_arrows_go_one_way(table: Table) -> None:
    before: set[str] = set()
    for name, below in table.items():
        assert set(below) <= before, f"{name} comes before what it imports"
        before.add(name)


@pytest.mark.parametrize(
    ("folder", "table"),
    [
        ("server", ROOMS),
        ("server/tasks", TASKS),
        ("stages/diffusion", DIFFUSION),
        ("stages/vllm", VLLM),
    ],
)
def test_every_room_is_in_its_table(folder: str, table: Table) -> None:
    beside = {name for name in BESIDE[folder] if (ROOT / folder / name).is_dir()}
    assert rooms_in(folder) == table.keys() | beside


@pytest.mark.parametrize("folder", BESIDE)
def test_every_file_is_in_a_room(folder: str) -> None:
    found = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    found |= rooms_in(folder) & set(BESIDE[folder])
    assert found == set(BESIDE[folder])


@pytest.mark.parametrize("layer", LAYERS)
def test_tests_lie_in_folders_of_the_code(layer: str) -> None:
    for path in (ROOT / "tests" / layer).rglob("test_*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        assert (ROOT / folder / "__init__.py").is_file(), f"{place(path)} mirrors no folder"


def test_exceptions_are_needed() -> None:
    for name in NAMING:
        assert naming(ROOT / name, names_of_families()), name
    folder, weights = WEIGHTS_GIVEN
    assert any(weights in imports(path) for path in files(folder))
    bare = {name.split(".")[0] for name in imports(ROOT / BARE_PIPELINE)}
    assert bare & set(MODEL_LIBRARIES) == {"diffusers", "torch"}
    path = ROOT / COMMAND_LINE
    command_line = list(files(COMMAND_LINE)) if path.is_dir() else [path.with_suffix(".py")]
    for layer in ("bench", "demo"):
        names = {name for one in command_line for name in imports(one)}
        assert any(is_below(name, (f"{OURS}.{layer}",)) for name in names)

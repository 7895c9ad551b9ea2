"""Who may import whom. Each table is exact: an arrow that it has and nobody needs fails as well."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository.layers import (
    BARE_PIPELINE,
    BESIDE,
    COMMAND_LINE,
    DIFFUSION,
    FIELDS,
    HEAVY,
    LAYERS,
    MODEL_LIBRARIES,
    NAMING,
    OF_RAY,
    OURS,
    ROOMS,
    ROOT,
    SHARED,
    TASKS,
    VLLM,
    WEIGHTS_GIVEN,
    Table,
    arrows,
    circle,
    files,
    imports,
    is_below,
    modules,
    names_of_families,
    naming,
    place,
    refuse,
    rooms_in,
)

WEB = ("fastapi", "starlette", "uvicorn")
HTTP_CLIENTS = ("httpx", "httpx2", "httpcore", "aiohttp", "requests", "urllib", "http")
MESSAGES, BENCH, DEMO = (f"{OURS}.{name}" for name in ("stages.messages", "bench", "demo"))


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


def test_no_test_changes_the_clock_of_the_process() -> None:
    """Event loops of the session's servers run beside it: one would sleep until that clock."""
    changed = re.compile(r"""setattr\(\s*(time\b|["'](.+\.)?time\.)""")
    found = [place(path) for path in files("tests") if changed.search(path.read_text("utf-8"))]
    assert not found, f"replace the module's `time` instead: {found}"


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

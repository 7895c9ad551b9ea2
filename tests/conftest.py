"""What all tests share: no model hub, and tiny checkpoints written once a run."""

import contextlib
import gc
import importlib
import inspect
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # Diffusers imports onnxruntime, which keeps a database

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import HealthCheck, settings
from support import forked_engines, ports
from support.installed import Installed
from websockets.sync.client import connect

from omnistage.connectors.sweep import make_run_directory
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

gc.disable()  # until all is collected: what it would look at is hardly ever garbage

# What a client of a test waits for comes at once on a machine that has time, and in the end on any.
CLIENT_TIMEOUT = inspect.signature(httpx.get).parameters["timeout"].default
for part in CLIENT_TIMEOUT.as_dict():
    setattr(CLIENT_TIMEOUT, part, 600.0)
assert connect.__kwdefaults__ is not None
connect.__kwdefaults__["open_timeout"] = 600.0

SPAWNED = Path(__file__).parent / "support" / "spawned"

if TYPE_CHECKING:
    from support.oracles.qwen2_5_omni import Qwen2_5Reference
    from support.oracles.reference import Reference


SESSION_SERVERS = ("server", "images", "omni")  # fixtures of the conftest of this room
SHARING = "tests/e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that share a server; begin with slow files; skip what repeats another test."""
    for item in items:
        check_name(item)
        if any(is_of_the_session(item, name) for name in SESSION_SERVERS):
            item.add_marker(pytest.mark.shared)
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)
    if "OMNISTAGE_REPEATS" not in os.environ:
        for item in items:
            if item.get_closest_marker("repeat") is not None:
                item.add_marker(pytest.mark.skip(reason="it repeats another test: make repeats"))


def check_name(item: pytest.Item) -> None:
    """Refuse a name with a set in it: two processes that run tests may order it differently.

    One that compiled the file orders its sets unlike one that read the compiled file.
    """
    assert isinstance(item, pytest.Function)
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if any(isinstance(value, set | frozenset) and str(value) in item.name for value in params):
        raise pytest.UsageError(f"{item.nodeid}: its name has a set, which has no order")


def is_of_the_session(item: pytest.Item, fixture: str) -> bool:
    """Return whether a test has the fixture of this name that all tests of the room share."""
    assert isinstance(item, pytest.Function)
    found = item._fixtureinfo.name2fixturedefs.get(fixture)
    return found is not None and (found[-1].baseid, found[-1].scope) == (SHARING, "session")


# An example takes long on a machine that stands still for a moment, which is no fault.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """Modules live until the end: collections of garbage need not look at them."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)


@pytest.fixture(autouse=True)
def no_descriptor_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test without an engine closes all that it opens: sockets, pipes, channels, files.

    Ports given out stay held.
    """
    if request.node.get_closest_marker("engine") is not None:
        yield  # what a library opens once stays open; end-to-end tests look at the server's
        return
    before = open_descriptors()
    yield
    if uses_a_gpu():
        return  # CUDA keeps sockets, pipes and events that nobody can tell from the test's
    deadline = time.monotonic() + 600.0
    while left := {item for item in open_descriptors() - before if not is_kept(item[1])}:
        assert time.monotonic() < deadline, left
        gc.collect()
        time.sleep(0.01)  # a server in a thread closes its ends when it comes to it


def uses_a_gpu() -> bool:
    """Return whether this process has begun to compute on a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def open_descriptors() -> set[tuple[str, str]]:
    """This process's descriptors, and what each is."""
    found = set()
    held = set(map(str, ports.HELD))
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            found.add((link.name, os.readlink(link)))
    return {
        (name, target)
        for name, target in found
        if name not in held and not target.startswith("/proc/")
    }


def is_kept(target: str) -> bool:
    """Whether a library keeps such a file for the life of the process."""
    return target.startswith(("/dev/", "/usr/", sys.prefix)) and "omnistage" not in target


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Packages of this test alone."""
    folder = tmp_path / "installed"
    folder.mkdir()
    packages = Installed(folder, monkeypatch)
    yield packages
    packages.close()


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function from a seed to the folder of its tiny Qwen3-Omni checkpoint."""
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    written: dict[int, Path] = {}

    def checkpoint(seed: int) -> Path:
        if seed not in written:
            written[seed] = tmp_path_factory.mktemp("checkpoints") / f"tiny-{seed}"
            write_tiny_checkpoint(written[seed], seed=seed)
        return written[seed]

    return checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_checkpoints: Callable[[int], Path]) -> Path:
    """The folder of one tiny Qwen3-Omni checkpoint."""
    return tiny_checkpoints(0)


def tiny_folder(name: str, writer: str) -> object:
    """Return a fixture: the folder of a tiny model, which `module:function` writes once a run."""

    @pytest.fixture(scope="session")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        module, _, function = writer.partition(":")
        folder = tmp_path_factory.mktemp("checkpoints") / name
        getattr(importlib.import_module(module), function)(folder)
        return folder

    return folder


tiny_text = tiny_folder("tiny-text", "support.models.tiny_text:write_tiny_text")
tiny_qwen2_5_omni = tiny_folder(
    "tiny-qwen2.5-omni", "omnistage.stages.qwen2_5_omni.checkpoint.tiny:write_tiny_checkpoint"
)
tiny_thinking = tiny_folder(
    "tiny-thinking", "omnistage.stages.qwen3_omni.checkpoint.tiny:write_tiny_thinking"
)
tiny_glm_image = tiny_folder(
    "glm-image", "omnistage.stages.glm_image.checkpoint.tiny:write_tiny_glm_image"
)
tiny_omnigen2 = tiny_folder(
    "omnigen2", "omnistage.stages.omnigen2.checkpoint.tiny:write_tiny_omnigen2"
)
tiny_mammothmoda2 = tiny_folder(
    "mammothmoda2", "omnistage.stages.mammothmoda2.checkpoint.tiny:write_tiny_mammothmoda2"
)
tiny_dreamid_omni = tiny_folder(
    "dreamid-omni", "omnistage.stages.dreamid_omni.checkpoint.tiny:write_tiny_dreamid_omni"
)
tiny_bagel = tiny_folder("bagel", "omnistage.stages.bagel.checkpoint.tiny:write_tiny_bagel")


@pytest.fixture(scope="session")
def tiny_qwen_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one tiny Qwen-Image pipeline."""
    from omnistage.stages.diffusion.checkpoint import write_tiny

    folder = tmp_path_factory.mktemp("pipelines") / "qwen-image"
    write_tiny("qwen-image", folder)
    return folder


@pytest.fixture(scope="session")
def reference(tiny_checkpoint: Path) -> "Reference":
    """transformers over the tiny checkpoint."""
    from support.oracles.reference import Reference

    return Reference(str(tiny_checkpoint))


@pytest.fixture(scope="session")
def qwen2_5_reference(tiny_qwen2_5_omni: Path) -> "Qwen2_5Reference":
    """transformers over the tiny Qwen2.5-Omni."""
    from support.oracles.qwen2_5_omni import Qwen2_5Reference

    return Qwen2_5Reference(str(tiny_qwen2_5_omni))


@pytest.fixture(scope="module")
def run_directory() -> Iterator[Path]:
    """A folder in memory for channels."""
    run = make_run_directory()
    yield run.path
    run.remove()


@pytest.fixture(scope="module")
def cpu_engine() -> Iterator[None]:
    """The environment of engines that tests start in their own process: as the tiny graph's.

    But none is forked from that process, which is full of what other tests have opened: the cores
    are forked from one that has vLLM's modules and nothing else, their workers are spawned.
    """
    graph = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SPAWNED), prepend=os.pathsep)
        for name, value in graph.stages["thinker"].environment.items():
            patch.setenv(name, str(value))
        patch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        patch.setattr("vllm.v1.engine.utils.get_mp_context", forked_engines.context)
        yield

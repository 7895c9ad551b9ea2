"""The agent of a node: the run's folders there, processes of stages, and nothing left of them."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from support.channels.nodes import PATIENT
from support.faults.chaos import is_there
from support.repository.shout import install_shout, shout_model
from support.waiting import until

from omnistage.connectors.sweep import DEFAULT_ROOT, PREFIX, make_run_directory
from omnistage.server.placement.agent import Line, News
from omnistage.server.placement.node_agent import NodeAgent
from omnistage.stage_configs.graph import StageGraph


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageGraph]:
    installed = install_shout(tmp_path / "site", monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield StageGraph.model_validate(
        {
            "model": str(shout_model(tmp_path / "model")),
            "placement": "ray",
            "stages": {"reader": {"kind": "shout.reader"}, "writer": {"kind": "shout.writer"}},
            "edges": [{"from": "reader", "to": "writer"}],
            "outputs": {"text": "writer"},
        }
    )
    installed.close()


@pytest.fixture
def broken(graph: StageGraph) -> None:
    """The writer's model says nothing, so the writer cannot start."""
    Path(graph.model, "config.json").unlink()


OTHERS: set[Path] = set()  # run directories of other tests in this process


def own_folders() -> Sequence[Path]:
    """The run directories of this process that the test has made."""
    return sorted({*DEFAULT_ROOT.glob(f"{PREFIX}{os.getpid()}-*")} - OTHERS)


@pytest.fixture(autouse=True)
def others() -> None:
    """What is there before a test is not its own."""
    OTHERS.clear()
    OTHERS.update(own_folders())


@pytest.fixture
async def agent(graph: StageGraph, others: None) -> AsyncIterator[NodeAgent]:
    """One that has the run's folders; the test may have closed it."""
    level = logging.getLogger("omnistage").level
    agent = NodeAgent()
    environment = {"OMNISTAGE_LOG_LEVEL": "DEBUG"}
    await agent.open("one", graph.model_dump_json(), environment, PATIENT)
    try:
        yield agent
    finally:
        logging.getLogger("omnistage").setLevel(level)
        if own_folders():
            await agent.close()


async def pid_of(stage: str) -> int:
    """A stage's process, once it is there."""
    found: list[int] = []
    (folder,) = own_folders()

    def find() -> list[int]:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            if str(folder) in words and stage in words:
                found.append(int(path.parent.name))
        return found

    await until(find)
    return found[0]


def environment_of(pid: int) -> set[bytes]:
    return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


async def test_it_makes_every_channel_and_the_graph_and_removes_all_of_it(
    agent: NodeAgent, graph: StageGraph
) -> None:
    (folder,) = own_folders()
    made = {path.name for path in folder.iterdir()}
    assert {"gateway.reader", "writer.gateway", "reader.writer.rows", "graph.json"} <= made
    assert StageGraph.model_validate_json((folder / "graph.json").read_bytes()) == graph
    scratch = (folder / "scratch").resolve()
    await agent.close()
    assert not own_folders()
    assert not scratch.exists()


async def test_a_process_gets_its_environment_and_ends_when_it_is_told_to(
    agent: NodeAgent,
) -> None:
    await agent.start("writer", {"CUDA_VISIBLE_DEVICES": "7"})
    pid = await pid_of("writer")
    environment = environment_of(pid)
    assert {b"CUDA_VISIBLE_DEVICES=7", b"OMNISTAGE_LOG_LEVEL=DEBUG"} <= environment
    await agent.kill("writer")
    assert await agent.wait("writer") == "signal SIGKILL"
    assert not is_there(pid)


async def test_close_ends_what_still_runs(agent: NodeAgent) -> None:
    await agent.start("reader", {})
    pid = await pid_of("reader")
    await agent.close()
    assert not is_there(pid)


async def test_a_stop_during_the_start_ends_the_process(agent: NodeAgent) -> None:
    starting = asyncio.create_task(agent.start("reader", {}))
    await asyncio.sleep(0)
    await agent.stop("reader", 0)
    await starting
    assert (await agent.wait("reader")).startswith(("signal ", "exit code "))


async def test_a_stage_that_could_not_be_started_is_ended_without_an_error(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(BlockingIOError, match="no more processes"):
        await agent.start("writer", {})
    await agent.kill("writer")
    await agent.stop("writer", 0)
    await agent.close()
    assert not own_folders()


async def test_what_a_stage_prints_and_how_it_loads_is_told_once(
    agent: NodeAgent, broken: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.server.placement.node_agent.NEWS_PATIENCE_S", 0.3)
    await agent.start("writer", {})
    ended_by = await agent.wait("writer")
    news = await all_news(agent)
    said = [line for one in news for line in one.lines]
    assert any(line.stage == "writer" and "KeyError: 'ending'" in line.text for line in said), said
    assert "ending" in ended_by
    loading = [one.loading["writer"] for one in news if "writer" in one.loading]
    assert loading[-1:] in ([], [None])
    assert not [line for one in await all_news(agent) for line in one.lines if line.stage]


async def all_news(agent: NodeAgent) -> list[News]:
    """What there is to tell now."""
    found = []
    while any(news := await asyncio.wait_for(agent.news(), 600)):
        found.append(news)
    return found


async def test_it_tells_nothing_after_a_while(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.server.placement.node_agent.NEWS_PATIENCE_S", 0.1)
    async with asyncio.timeout(600):
        while await agent.news() != News():  # the machine's own pauses may be told before
            pass


async def test_its_own_lines_are_told_too(agent: NodeAgent) -> None:
    logging.getLogger("omnistage.connectors").warning("the ring of %s", "time")
    assert Line("", logging.WARNING, "the ring of time") in (await agent.news()).lines


async def test_it_sweeps_what_others_left(graph: StageGraph, agent: NodeAgent) -> None:
    left = make_run_directory()
    os.close(left.lock)  # as if its process were gone
    await agent.close()
    other = NodeAgent()
    await other.open("two", graph.model_dump_json(), {}, PATIENT)
    try:
        assert not left.path.exists()
    finally:
        await other.close()

"""What a person sees of stages that load."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from support.fakes.stages import FakeGraph
from support.gateway.serving import OMNI, SharedConnector
from support.waiting import until

from omnistage.server.runtime.fleet import StageDied
from omnistage.server.runtime.processes.loading import Pace, describe, show_loading
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.loading import Loading, Phase


class Started:
    """A server's runtime, two of whose stages load: what they tell is set by hand."""

    def __init__(self, directory: Path, runtime: Runtime, stages: FakeGraph) -> None:
        self.runtime = runtime
        self.stages = stages
        self._directory = directory

    def tell(self, stage: str, told: Loading) -> None:
        (self._directory / f"{stage}.loading").write_bytes(msgspec.json.encode(told))

    def become_ready(self) -> None:
        for name in ("thinker", "talker"):
            self.stages.stages[name].become_ready()


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    stages.is_loading = {"thinker", "talker"}
    graph = StageGraph.model_validate(OMNI)
    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        yield Started(tmp_path, runtime, stages)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.name.endswith("processes.loading")]


async def test_without_a_terminal_each_phase_of_a_stage_is_one_line(
    started: Started, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.server.runtime.processes.loading.REFRESH_S", 0.01)
    caplog.set_level(logging.INFO)
    console = Console(file=io.StringIO(), force_terminal=False)
    async with asyncio.TaskGroup() as group:
        group.create_task(show_loading(started.runtime.fleet, console))
        for done in range(1, 4):
            started.tell("thinker", Loading(Phase.READING, done * 10**9, 4 * 10**9))
            await asyncio.sleep(0.05)
        started.tell("talker", Loading(Phase.COMPILING))
        await until(lambda: len(lines(caplog)) == 2)
        started.tell("talker", Loading(Phase.READING))
        started.tell("thinker", Loading(Phase.WARMING_UP))
        await until(lambda: len(lines(caplog)) == 4)
        started.tell("talker", Loading(Phase.COMPILING))  # again: it was said
        await asyncio.sleep(0.05)
        started.become_ready()
    assert lines(caplog)[:2] == [
        "stage thinker: reading weights (4.0 GB)",
        "stage talker: compiling",
    ]
    assert sorted(lines(caplog)[2:]) == [
        "stage talker: reading weights",
        "stage thinker: warming up",
    ]


async def test_on_a_terminal_each_stage_has_a_bar_that_says_what_it_does_and_what_remains(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.server.runtime.processes.loading.REFRESH_S", 0.01)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    async with asyncio.TaskGroup() as group:
        group.create_task(show_loading(started.runtime.fleet, console))
        started.tell("thinker", Loading(Phase.READING, 1 * 10**9, 4 * 10**9))
        await until(lambda: "thinker: reading weights 1.0 of 4.0 GB" in screen.getvalue())
        started.tell("thinker", Loading(Phase.READING, 2 * 10**9, 4 * 10**9))
        await until(lambda: "thinker: reading weights 2.0 of 4.0 GB, 0:0" in screen.getvalue())
        started.tell("talker", Loading(Phase.CAPTURING))
        await until(lambda: "talker: capturing graphs" in screen.getvalue())
        started.become_ready()
    last = screen.getvalue().rpartition("thinker: ready")
    assert last[1], screen.getvalue()
    assert "talker: ready" in last[2]
    assert "code2wav: ready" in last[2]


async def test_a_stage_that_ends_while_it_loads_ends_the_bars(started: Started) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    showing = asyncio.create_task(show_loading(started.runtime.fleet, console))
    started.stages.stages["talker"].die("exit code 1: no room; make some")
    with pytest.raises(
        StageDied, match=r"^stage talker ended while it loaded: exit code 1: no room; make some$"
    ):
        await showing


async def test_a_stage_that_said_nothing_yet_is_starting(started: Started) -> None:
    assert started.runtime.fleet.loading == {"thinker": Loading(), "talker": Loading()}
    health = started.runtime.fleet.health
    assert {name: stage["phase"] for name, stage in health.items()} == {
        "thinker": "starting",
        "talker": "starting",
        "code2wav": "",
    }


@pytest.mark.parametrize(
    ("told", "left_s", "said"),
    [
        (Loading(Phase.COMPILING), None, "compiling"),
        (Loading(Phase.READING, 0, 57_700_000_000), None, "reading weights (57.7 GB)"),
        (Loading(Phase.READING, 31, 57_700_000_000), None, "reading weights 0.0 of 57.7 GB"),
        (
            Loading(Phase.DOWNLOADING, 5_000_000_000, 61_400_000_000),
            754.4,
            "downloading 5.0 of 61.4 GB, 12:34 left",
        ),
    ],
)
def test_a_phase_in_words(told: Loading, left_s: float | None, said: str) -> None:
    assert describe(told, left_s) == said


def test_what_remains_is_reckoned_from_the_pace_of_this_phase_alone() -> None:
    pace = Pace()
    assert pace.left_s(Loading(Phase.DOWNLOADING, 50, 100), 10.0) is None
    assert pace.left_s(Loading(Phase.DOWNLOADING, 50, 100), 11.0) is None  # stands still
    assert pace.left_s(Loading(Phase.DOWNLOADING, 75, 100), 20.0) == 10.0
    assert pace.left_s(Loading(Phase.READING, 0, 100), 21.0) is None
    assert pace.left_s(Loading(Phase.READING, 50, 100), 22.0) == 1.0
    assert pace.left_s(Loading(Phase.READING, 110, 100), 23.0) is None  # more than was thought
    assert pace.left_s(Loading(Phase.COMPILING), 24.0) is None

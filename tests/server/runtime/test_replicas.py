"""Replicas over fake stages: who gets a request, what a death takes along, who comes and goes."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes.stages import FakeGraph, obey
from support.gateway.chats import request_of
from support.gateway.serving import OMNI, SharedConnector, outputs_of
from support.waiting import until

from omnistage.connectors.chunk import Chunk
from omnistage.server.common.errors import ApiError
from omnistage.server.common.trace import GATEWAY, Trace, following
from omnistage.server.runtime.request import Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.stage_record import StageState
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_gateway import CommandResult, Failed, Lora
from omnistage.stages.messages.to_stage import Command

EVERY = ("thinker", "talker@0", "talker@1", "code2wav@0", "code2wav@1")


def replicated(**stages: dict[str, int]) -> StageGraph:
    """The graph with these keys at its stages."""
    kinds: Any = OMNI["stages"]
    changed = {name: {**kinds[name], **stages.get(name, {})} for name in kinds}
    return StageGraph.model_validate({**OMNI, "stages": changed, "deadlines": {"command_s": 60}})


class Running:
    """A runtime over fake stages."""

    def __init__(self, runtime: Runtime, stages: FakeGraph) -> None:
        self.runtime = runtime
        self.fake = stages
        self.num_ended = 0  # outputs of all that was asked

    @property
    def states(self) -> dict[str, str]:
        return {name: str(link.record.state) for name, link in self.runtime.fleet.stages.items()}

    def ask(self, script: str, *outputs: str) -> asyncio.Task[list[Output]]:
        """The outputs of a chat, whole; spoken without a word of them."""
        request = request_of(script, *(outputs or ("text", "audio")))

        async def collect() -> list[Output]:
            collected = []
            async for output in outputs_of(self.runtime, request):
                collected.append(output)
                self.num_ended += output.last
            return collected

        return asyncio.create_task(collect())

    async def ask_at_once(self, count: int) -> list[list[Output]]:
        """The same of spoken chats of which none ends before all have been sent."""
        asked = [self.ask("wait") for _ in range(count)]
        await until(lambda: self.fake.num_waiting == count)
        self.fake.go_on()
        return await asyncio.gather(*asked)

    def paths(self, entry: str = "thinker") -> list[list[str]]:
        """Of every request that an entry got, in order."""
        return [chunk.message.path for chunk in self.fake.stages[entry].opened]

    async def kill(self, name: str) -> None:
        self.fake.stages[name].die("signal SIGKILL")
        await until(lambda: self.runtime.fleet.stages[name].record.ended_by)

    def refuse_all(self, *names: str) -> None:
        """These carry out no command from now on, and others all."""

        def obey_or_refuse(stage: str, command: str, arguments: Any) -> CommandResult:
            if stage in names:
                return CommandResult(error=Failed(400, "no folder", "invalid_request_error", stage))
            return obey(stage, command, arguments)

        self.fake.obey = obey_or_refuse

    async def until_ready(self, name: str, generation: int) -> None:
        link = self.runtime.fleet.stages[name]
        await until(lambda: link.is_ready and link.record.generation == generation)


@asynccontextmanager
async def run(directory: Path, graph: StageGraph) -> AsyncGenerator[Running, None]:
    shared = SharedConnector(directory)
    stages = FakeGraph(shared.connector)
    async with Runtime(graph, directory, stages.launch, shared) as runtime:
        await runtime.fleet.loaded()
        yield Running(runtime, stages)


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Running]:
    """Two talkers and two vocoders."""
    graph = replicated(talker={"replicas": 2}, code2wav={"replicas": 2})
    async with run(tmp_path, graph) as running:
        yield running


@pytest.fixture
async def thinkers(tmp_path: Path) -> AsyncIterator[Running]:
    """Two thinkers, of at most three."""
    graph = replicated(thinker={"replicas": 2, "max_replicas": 3})
    async with run(tmp_path, graph) as running:
        yield running


def is_whole(outputs: list[Output]) -> bool:
    """Whether text and audio have ended."""
    return sum(output.last for output in outputs) == 2


# Binding


async def test_four_at_once_are_spread_over_both_replicas_of_each_stage(pairs: Running) -> None:
    assert all(is_whole(one) for one in await pairs.ask_at_once(4))
    used = Counter(name for path in pairs.paths() for name in path)
    assert used == {"thinker": 4, **dict.fromkeys(EVERY[1:], 2)}
    assert all(len(path) == 3 for path in pairs.paths())


async def test_a_replica_that_is_down_gets_nothing_until_it_is_ready_again(pairs: Running) -> None:
    pairs.fake.is_loading = {"code2wav@0"}
    await pairs.kill("code2wav@0")
    assert all(is_whole(one) for one in await pairs.ask_at_once(3))
    assert {path[-1] for path in pairs.paths()} == {"code2wav@1"}
    pairs.fake.stages["code2wav@0"].become_ready()
    await pairs.until_ready("code2wav@0", 2)
    assert is_whole(await pairs.ask("words"))
    assert pairs.paths()[-1][-1] == "code2wav@0"
    assert {n for n in EVERY if pairs.runtime.fleet.stages[n].record.generation > 1} == {
        "code2wav@0"
    }


STRUCK = st.sampled_from(EVERY[1:])
EVENTS = st.lists(
    st.one_of(st.just(("asks", "")), st.tuples(st.sampled_from(["dies", "comes"]), STRUCK)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=20, deadline=None)
@given(events=EVENTS)
def test_no_request_meets_a_replica_that_is_down_whatever_dies_and_comes(
    events: list[tuple[str, str]],
) -> None:
    graph = replicated(talker={"replicas": 2}, code2wav={"replicas": 2})

    async def play(directory: Path) -> None:
        asked: list[asyncio.Task[list[Output]]] = []
        async with run(directory, graph) as pairs:
            links = pairs.runtime.fleet.stages
            thinker = pairs.fake.stages["thinker"]
            pairs.fake.is_loading = set(EVERY)  # what has died is down until it comes
            for event, name in events:
                num_seen = len(thinker.opened)
                if event == "dies" and links[name].is_ready:
                    pairs.fake.stages[name].die("signal SIGKILL")
                    await until(lambda name=name: not links[name].is_ready)  # type: ignore[misc]
                elif event == "comes" and links[name].record.state is StageState.LOADING:
                    pairs.fake.stages[name].become_ready()
                    await until(lambda name=name: links[name].is_ready)  # type: ignore[misc]
                elif event == "asks":
                    asked.append(pairs.ask("hang"))
                    await asyncio.sleep(0)
                up = {name for name in EVERY if links[name].is_ready}
                if event == "asks" and not pairs.runtime.fleet.unready:
                    await until(lambda n=num_seen: len(thinker.opened) == n + 1)  # type: ignore[misc]
                await asyncio.sleep(0.005)
                for path in pairs.paths()[num_seen:]:
                    assert set(path) <= up
                    assert len(path) == 3
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


# Death


async def test_what_nobody_has_heard_of_is_sent_again_to_another(thinkers: Running) -> None:
    trace = Trace()
    with following(trace):
        struck = thinkers.ask("wait", "text")
    spared = thinkers.ask("wait", "text")
    await until(lambda: thinkers.fake.num_waiting == 2)
    old = thinkers.fake.stages["thinker@0"].opened[0].request_id
    await thinkers.kill("thinker@0")
    await until(lambda: thinkers.fake.num_waiting == 2)
    thinkers.fake.go_on()
    assert [output.last for output in await struck] == [output.last for output in await spared]
    opened = [chunk.request_id for chunk in thinkers.fake.stages["thinker@1"].opened]
    assert opened[-1] == f"{old}-again"
    assert trace.graph_ids == [old, f"{old}-again"]
    assert (GATEWAY, "sent_again") in trace.timeline.marks
    assert {stage for stage, _ in trace.timeline.marks} == {GATEWAY, "thinker@1"}
    assert thinkers.paths("thinker@1")[-1][0] == "thinker@1"
    await until(lambda: not thinkers.fake.running)


async def test_of_an_answer_that_has_begun_only_those_with_the_struck_replica_fail(
    pairs: Running,
) -> None:
    asked = [pairs.ask("crash") for _ in "four"]  # their vocoders hang after the text has come
    await until(lambda: pairs.num_ended == 4)  # all text has come
    struck = [path[-1] == "code2wav@1" for path in pairs.paths()]
    await pairs.kill("code2wav@1")
    await until(lambda: sum(one.done() for one in asked) == 2)
    for one, is_struck in zip(asked, struck, strict=True):
        assert one.done() == is_struck
        if is_struck:
            with pytest.raises(ApiError, match=r"code2wav@1 has ended \(signal SIGKILL") as failed:
                one.result()
            assert failed.value.code == "stage_unavailable"
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert len(pairs.paths()) == 4  # none went again


async def test_a_request_goes_again_once(thinkers: Running) -> None:
    asked = thinkers.ask("hang")
    await until(lambda: thinkers.fake.stages["thinker@0"].opened)
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    await until(lambda: thinkers.fake.stages["thinker@1"].opened)
    old = thinkers.fake.stages["thinker@1"].opened[0].request_id.removesuffix("-again")
    await until(lambda: thinkers.fake.stages["code2wav"].cancelled == [old])
    await thinkers.kill("thinker@1")
    with pytest.raises(ApiError, match="thinker@1 has ended"):
        await asked
    assert not thinkers.fake.stages["thinker@0"].opened


async def test_without_another_replica_it_fails_as_one_of_a_single_stage(pairs: Running) -> None:
    asked = pairs.ask("hang")
    await until(lambda: pairs.fake.running)
    await pairs.kill("thinker")
    with pytest.raises(ApiError, match="Stage thinker has ended"):
        await asked


async def test_what_has_no_replica_left_is_refused_and_not_ready(pairs: Running) -> None:
    fleet = pairs.runtime.fleet
    pairs.fake.is_loading = {"talker@0", "talker@1"}
    await pairs.kill("talker@0")
    assert not fleet.unready
    await pairs.kill("talker@1")
    assert set(fleet.unready) == {"talker@0", "talker@1"}
    with pytest.raises(ApiError) as refused:
        pairs.runtime.flights.admit(["audio"])
    assert refused.value.status == 503
    with pairs.runtime.flights.admit(["text"]):
        assert not fleet.is_broken


async def test_a_replica_that_cannot_start_again_breaks_nothing_but_the_last_one_does(
    pairs: Running,
) -> None:
    fleet = pairs.runtime.fleet
    pairs.fake.unlaunchable = {"talker@0", "talker@1"}
    for name, is_broken in (("talker@0", False), ("talker@1", True)):
        pairs.fake.stages[name].die("exit code 1")
        await until(lambda name=name: fleet.stages[name].record.is_lost)  # type: ignore[misc]
        assert fleet.is_broken == is_broken


# Scaling


async def test_a_replica_is_added_and_serves(thinkers: Running) -> None:
    await thinkers.runtime.scaling.scale("thinker", 3)
    assert thinkers.states == dict.fromkeys(
        ("thinker@0", "thinker@1", "thinker@2", "talker", "code2wav"), "ready"
    )
    assert all(is_whole(one) for one in await thinkers.ask_at_once(3))
    assert [len(thinkers.paths(f"thinker@{number}")) for number in range(3)] == [1, 1, 1]


async def test_a_replica_that_goes_lets_its_requests_end_and_others_lose_nothing(
    thinkers: Running,
) -> None:
    asked = [thinkers.ask("wait") for _ in "four"]
    await until(lambda: thinkers.fake.num_waiting == 4)
    going = asyncio.create_task(thinkers.runtime.scaling.scale("thinker", 1))
    await until(lambda: thinkers.runtime.fleet.stages["thinker@1"].record.is_closed)
    late = [thinkers.ask("words") for _ in "ab"]
    assert all(is_whole(one) for one in await asyncio.gather(*late))
    assert not going.done()
    thinkers.fake.go_on()
    assert all(is_whole(one) for one in await asyncio.gather(*asked))
    await going
    assert list(thinkers.states) == ["thinker@0", "talker", "code2wav"]
    assert len(thinkers.paths("thinker@0")) == 4
    assert len(thinkers.paths("thinker@1")) == 2
    await thinkers.runtime.scaling.scale("thinker", 2)
    assert thinkers.states["thinker@1"] == "ready"
    assert is_whole(await thinkers.ask("words"))
    assert thinkers.paths("thinker@1")[-1][0] == "thinker@1"  # it has been idle the longest


async def test_a_replica_whose_requests_do_not_end_stays(tmp_path: Path) -> None:
    requests = [request_of("endless", "text") for _ in "ab"]
    hurried = {"deadlines": Deadlines(command_s=0.5)}
    graph = replicated(thinker={"replicas": 2}).model_copy(update=hurried)
    async with (
        run(tmp_path, graph) as thinkers,
        aclosing(outputs_of(thinkers.runtime, requests[0])) as one,
        aclosing(outputs_of(thinkers.runtime, requests[1])) as other,
    ):
        await anext(one)
        await anext(other)
        with pytest.raises(ApiError, match=r"thinker@1 did not end within 0.5 s") as refused:
            await thinkers.runtime.scaling.scale("thinker", 1)
        assert refused.value.code == "busy"
        assert thinkers.runtime.fleet.stages["thinker@1"].is_open


async def test_a_replica_that_is_down_goes_first(thinkers: Running) -> None:
    thinkers.fake.is_loading = {"thinker@0"}
    await thinkers.kill("thinker@0")
    await thinkers.runtime.scaling.scale("thinker", 1)
    assert list(thinkers.states) == ["thinker@1", "talker", "code2wav"]
    assert is_whole(await thinkers.ask("words"))
    thinkers.fake.is_loading.clear()
    await thinkers.runtime.scaling.scale("thinker", 2)
    assert list(thinkers.states) == ["thinker@0", "thinker@1", "talker", "code2wav"]


async def test_one_less_and_one_more_replaces_a_replica_that_differs(thinkers: Running) -> None:
    await restart_unlike(thinkers)
    assert thinkers.states["thinker@0"] == "ready"
    await thinkers.runtime.scaling.scale("thinker", 1)
    assert list(thinkers.states) == ["thinker@1", "talker", "code2wav"]
    assert is_whole(await thinkers.ask("words"))
    await thinkers.runtime.scaling.scale("thinker", 2)
    links = thinkers.runtime.fleet.replicas_of("thinker")
    await until(lambda: all(link.is_open for link in links))
    assert [link.name for link in links] == ["thinker@0", "thinker@1"]


async def test_of_a_stage_that_sleeps_a_replica_that_is_down_goes_first(thinkers: Running) -> None:
    links = thinkers.runtime.fleet.replicas_of("thinker")
    await thinkers.runtime.draining.run(links, "sleep", {})
    thinkers.fake.is_loading = {"thinker@0"}
    await thinkers.kill("thinker@0")
    await thinkers.runtime.scaling.scale("thinker", 1)
    assert list(thinkers.states) == ["thinker@1", "talker", "code2wav"]


@pytest.mark.parametrize("num_replicas", [1, 3])
async def test_while_the_stages_load_nothing_is_scaled_and_the_server_starts(
    num_replicas: int, tmp_path: Path
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    stages.is_loading = {"thinker@1", "thinker@2"}
    graph = replicated(thinker={"replicas": 2, "max_replicas": 3})
    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        loading = asyncio.create_task(runtime.fleet.loaded())
        await until(lambda: runtime.fleet.stages["thinker@0"].is_ready)
        with pytest.raises(ApiError, match="still loading") as refused:
            await asyncio.wait_for(runtime.scaling.scale("thinker", num_replicas), 600)
        assert (refused.value.status, refused.value.code) == (503, "loading")
        assert refused.value.headers["Retry-After"] == "5"
        assert not loading.done()
        stages.stages["thinker@1"].become_ready()
        await loading
        stages.is_loading.clear()
        await runtime.scaling.scale("thinker", num_replicas)
        assert len(runtime.fleet.replicas_of("thinker")) == num_replicas


async def test_one_that_cannot_load_is_told_of_and_gone(thinkers: Running) -> None:
    thinkers.fake.is_loading = {"thinker@2"}
    adding = asyncio.create_task(thinkers.runtime.scaling.scale("thinker", 3))
    await until(lambda: "thinker@2" in thinkers.fake.stages)
    thinkers.fake.stages["thinker@2"].die("exit code 3: no GPU")
    with pytest.raises(ApiError, match=r"@2 ended while it loaded: exit code 3: no GPU") as refused:
        await adding
    assert refused.value.code == "stage_not_started"
    assert "thinker@2" not in thinkers.states
    assert not thinkers.runtime.fleet.is_broken
    assert is_whole(await thinkers.ask("words"))


async def test_one_that_the_machine_refuses_to_start_is_told_of_and_gone(
    thinkers: Running,
) -> None:
    thinkers.fake.unlaunchable = {"thinker@2"}
    with pytest.raises(ApiError, match=r"thinker@2 cannot be started: no more processes"):
        await thinkers.runtime.scaling.scale("thinker", 3)
    assert "thinker@2" not in thinkers.states
    thinkers.fake.unlaunchable.clear()
    await thinkers.runtime.scaling.scale("thinker", 3)
    assert thinkers.states["thinker@2"] == "ready"


async def test_a_server_can_end_while_a_replica_is_added(tmp_path: Path) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    stages.is_loading = {"thinker@1"}
    graph = replicated(thinker={"replicas": 1, "max_replicas": 2})
    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        await runtime.fleet.loaded()
        adding = asyncio.create_task(runtime.scaling.scale("thinker", 2))
        await until(lambda: "thinker@1" in stages.stages)
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert stages.launched.count("thinker@1") == 1


async def test_channels_of_replicas_that_do_not_run_are_not_counted(thinkers: Running) -> None:
    addresses = thinkers.runtime.fleet.channel_usages
    assert {"gateway.thinker@1", "thinker@1.talker.rows"} <= addresses.keys()
    assert not [address for address in addresses if "thinker@2" in address]


# Commands


async def test_a_replica_that_starts_again_is_told_what_its_stage_was_told(
    thinkers: Running,
) -> None:
    told: list[tuple[str, str]] = []
    lora = Lora("ink", "/ink", 8)
    thinkers.fake.loras = []

    def note(stage: str, command: str, arguments: Any) -> Any:
        told.append((stage, command))
        return CommandResult({"loras": [{"name": "ink", "path": "/ink", "rank": 8}]})

    thinkers.fake.obey = note
    fleet = thinkers.runtime.fleet
    links = fleet.replicas_of("thinker")
    fleet.note_change(links, "add_lora", {"name": "ink", "path": "/ink"})
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    await until(lambda: fleet.stages["thinker@0"].is_open)
    assert told == [("thinker@0", "add_lora")]
    assert fleet.stages["thinker@0"].record.loras == (lora,)
    await thinkers.runtime.scaling.scale("thinker", 3)
    await until(lambda: fleet.stages["thinker@2"].is_open)
    assert told[1:] == [("thinker@2", "add_lora")]


async def test_one_that_cannot_be_made_equal_takes_no_request(thinkers: Running) -> None:
    fleet = thinkers.runtime.fleet
    thinkers.fake.commands = {}  # of what starts from now on
    fleet.note_change(fleet.replicas_of("thinker"), "add_lora", {"name": "ink", "path": "/ink"})
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    assert is_whole(await thinkers.ask("words"))
    assert not fleet.stages["thinker@0"].is_open
    assert not thinkers.fake.stages["thinker@0"].opened


async def restart_unlike(thinkers: Running) -> None:
    """Start thinker@0 again; it cannot be given the adapter that its stage has."""
    fleet = thinkers.runtime.fleet
    fleet.note_change(fleet.replicas_of("thinker"), "add_lora", {"name": "ink", "path": "/ink"})
    thinkers.refuse_all("thinker@0")
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    stage = thinkers.fake.stages["thinker@0"]
    await until(lambda: any(isinstance(chunk.message, Command) for chunk in stage.seen))
    thinkers.fake.obey = obey


async def test_sleep_and_wake_do_not_open_a_replica_that_differs(thinkers: Running) -> None:
    await restart_unlike(thinkers)
    links = thinkers.runtime.fleet.replicas_of("thinker")
    for command in ("sleep", "wake"):
        await thinkers.runtime.draining.run(links, command, {})
    assert [link.is_open for link in links] == [False, True]
    assert all(is_whole(one) for one in await thinkers.ask_at_once(2))
    assert not thinkers.fake.stages["thinker@0"].opened


async def test_without_others_a_replica_that_differs_refuses_also_what_goes_on(
    thinkers: Running,
) -> None:
    await restart_unlike(thinkers)
    thinkers.fake.is_loading = {"thinker@1"}
    await thinkers.kill("thinker@1")
    for goes_on in (False, True):
        with pytest.raises(ApiError, match="thinker@0 is not as commands have made") as refused:
            thinkers.runtime.fleet.open_path(["text"], goes_on)
        assert (refused.value.status, refused.value.code) == (503, "stage_unavailable")


async def begin_repeat(thinkers: Running) -> str:
    """Start thinker@0 again: the id of what it is told, and does not answer by itself."""
    fleet = thinkers.runtime.fleet
    fleet.note_change(fleet.replicas_of("thinker"), "add_lora", {"name": "ink", "path": "/ink"})
    thinkers.fake.obey = lambda *_: None
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    stage = thinkers.fake.stages["thinker@0"]
    await until(lambda: stage.seen)
    thinkers.fake.obey = obey
    return stage.seen[0].request_id


def answer(thinkers: Running, told: str) -> None:
    """Thinker@0 has carried it out."""
    thinkers.fake.stages["thinker@0"].outputs.send(Chunk(told, CommandResult({}), last=True))


async def test_sleep_and_wake_do_not_open_a_replica_before_it_has_done_what_it_is_told(
    thinkers: Running,
) -> None:
    told = await begin_repeat(thinkers)
    links = thinkers.runtime.fleet.replicas_of("thinker")
    for command in ("sleep", "wake"):
        await thinkers.runtime.draining.run(links, command, {})
    assert [link.is_open for link in links] == [False, True]
    answer(thinkers, told)
    await until(lambda: links[0].is_open)


async def test_a_replica_that_is_to_go_is_not_opened_when_it_has_done_what_it_is_told(
    thinkers: Running,
) -> None:
    told = await begin_repeat(thinkers)
    link = thinkers.runtime.fleet.stages["thinker@0"]
    async with thinkers.runtime.draining.closed([link]):
        answer(thinkers, told)
        await until(lambda: not link.record.missed)
        assert not link.is_open
    assert link.is_open


# Weights


async def load(thinkers: Running, path: str | None) -> None:
    links = thinkers.runtime.fleet.replicas_of("thinker")
    await thinkers.runtime.draining.run(links, "load_weights", {"path": path})


async def can_load(thinkers: Running) -> None:
    """All stages take load_weights from now on."""
    thinkers.fake.commands = {**thinkers.fake.commands, "load_weights": ""}
    links = thinkers.runtime.fleet.stages.values()
    for link in links:
        thinkers.fake.stages[link.name].become_ready()
    await until(lambda: all("load_weights" in link.record.commands for link in links))


async def load_apart(thinkers: Running) -> None:
    """Only thinker@1 has other weights."""
    await can_load(thinkers)
    thinkers.refuse_all("thinker@0")
    with pytest.raises(ApiError, match="no folder"):
        await load(thinkers, "/other")
    thinkers.fake.obey = obey


async def test_a_replica_that_fails_to_load_what_another_has_loaded_takes_no_request(
    thinkers: Running,
) -> None:
    await load_apart(thinkers)
    links = thinkers.runtime.fleet.replicas_of("thinker")
    assert [link.is_open for link in links] == [False, True]
    assert all(is_whole(one) for one in await thinkers.ask_at_once(2))
    assert not thinkers.fake.stages["thinker@0"].opened


async def test_it_serves_again_with_other_weights_and_not_with_the_last_ones_again(
    thinkers: Running,
) -> None:
    await load_apart(thinkers)
    links = thinkers.runtime.fleet.replicas_of("thinker")
    await load(thinkers, None)
    assert [link.is_open for link in links] == [False, True]
    await load(thinkers, "/third")
    assert [link.is_open for link in links] == [True, True]


async def test_it_is_told_of_them_when_it_starts_again(thinkers: Running) -> None:
    await load_apart(thinkers)
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    await until(lambda: thinkers.runtime.fleet.stages["thinker@0"].is_open)
    told = thinkers.fake.stages["thinker@0"].seen[0].message
    assert told == Command("load_weights", {"path": "/other"})


async def test_a_replica_that_dies_over_other_weights_gets_them_before_its_first_request(
    thinkers: Running,
) -> None:
    await can_load(thinkers)
    thinkers.fake.obey = lambda stage, *told: None if stage == "thinker@0" else obey(stage, *told)
    loading = asyncio.create_task(load(thinkers, "/other"))
    await until(lambda: thinkers.fake.stages["thinker@0"].seen)
    thinkers.fake.is_loading = {"thinker@0"}
    await thinkers.kill("thinker@0")
    with pytest.raises(ApiError, match="thinker@0 has ended"):
        await loading
    link = thinkers.runtime.fleet.stages["thinker@0"]
    await until(lambda: link.record.generation == 2)
    thinkers.fake.stages["thinker@0"].become_ready()
    await until(lambda: thinkers.fake.stages["thinker@0"].seen)
    assert link.is_ready
    assert not link.is_open
    told = thinkers.fake.stages["thinker@0"].seen[0].message
    assert told == Command("load_weights", {"path": "/other"})


async def test_a_replica_that_starts_again_while_another_reads_its_weights_again_serves(
    thinkers: Running,
) -> None:
    await can_load(thinkers)
    thinkers.fake.obey = lambda *_: None
    loading = asyncio.create_task(load(thinkers, None))
    other = thinkers.fake.stages["thinker@1"]
    await until(lambda: other.seen)
    thinkers.fake.is_loading = {"thinker@0"}
    await thinkers.kill("thinker@0")
    link = thinkers.runtime.fleet.stages["thinker@0"]
    await until(lambda: link.record.generation == 2)
    other.outputs.send(Chunk(other.seen[0].request_id, CommandResult({"asleep": []}), last=True))
    with pytest.raises(ApiError, match="thinker@0 has ended"):
        await loading
    thinkers.fake.stages["thinker@0"].become_ready()
    await until(lambda: link.is_open)


async def test_weights_that_no_replica_can_load_leave_all_as_they_were(thinkers: Running) -> None:
    await can_load(thinkers)
    thinkers.refuse_all("thinker@0", "thinker@1")
    with pytest.raises(ApiError, match="no folder"):
        await load(thinkers, "/other")
    assert all(link.is_open for link in thinkers.runtime.fleet.replicas_of("thinker"))


async def test_weights_that_another_stage_cannot_load_are_kept_for_the_stage_that_can(
    thinkers: Running,
) -> None:
    await can_load(thinkers)
    thinkers.refuse_all("talker")
    fleet = thinkers.runtime.fleet
    both = [*fleet.replicas_of("thinker"), *fleet.replicas_of("talker")]
    with pytest.raises(ApiError, match="no folder"):
        await thinkers.runtime.draining.run(both, "load_weights", {"path": "/other"})
    assert all(link.is_open for link in both)
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    await until(lambda: fleet.stages["thinker@0"].is_open)
    told = thinkers.fake.stages["thinker@0"].seen[0].message
    assert told == Command("load_weights", {"path": "/other"})


async def test_adapters_are_added_also_where_weights_cannot_be_loaded(thinkers: Running) -> None:
    await can_load(thinkers)
    await load(thinkers, "/other")
    fleet = thinkers.runtime.fleet
    fleet.note_change(fleet.replicas_of("thinker"), "add_lora", {"name": "ink", "path": "/ink"})

    def obey_but_load(stage: str, command: str, arguments: Any) -> CommandResult:
        if command == "load_weights":
            return CommandResult(error=Failed(400, "no folder", "invalid_request_error", stage))
        return obey(stage, command, arguments)

    thinkers.fake.obey = obey_but_load
    await thinkers.kill("thinker@0")
    await thinkers.until_ready("thinker@0", 2)
    link = fleet.stages["thinker@0"]
    await until(lambda: link.record.missed == (("load_weights", {"path": "/other"}),))
    thinkers.fake.obey = obey
    await load(thinkers, "/third")
    assert link.is_open

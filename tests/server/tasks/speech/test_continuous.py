"""Several requests as one answer: in order, begun in time, ended together."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from support.api.bodies import given_text, speech_request
from support.fakes.stages import FRAMES, SAMPLES_PER_FRAME, FakeGraph
from support.gateway.serving import OMNI, SharedConnector

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.flight import Ticket
from omnistage.server.runtime.request import AudioOutput, GraphRequest
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.speech.continuous import CHARACTERS_PER_S, MAX_BEGUN, spoken
from omnistage.stage_configs.graph import StageGraph

OUTPUTS = ("text", "audio")
PCM = np.arange(sum(FRAMES) * SAMPLES_PER_FRAME, dtype="<i2").tobytes()
NUMBERS = itertools.count()
Running = tuple[Runtime, FakeGraph]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate(OMNI)
    async with Runtime(graph, tmp_path, stages.launch, shared, 2) as runtime:
        await runtime.fleet.loaded()
        yield runtime, stages


def pieces(*texts: str) -> Sequence[GraphRequest]:
    """The requests of the pieces of a text; each script of the fake stages is one."""
    return [speech_request(f"piece-{next(NUMBERS)}", OUTPUTS, input=text) for text in texts]


def begun(stages: FakeGraph) -> list[str]:
    return [given_text(chunk.message).text for chunk in stages.stages["thinker"].opened]


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def settled(stages: FakeGraph) -> None:
    await eventually(lambda: not stages.running)


async def test_the_sound_is_that_of_all_pieces_in_order_and_ends_once(running: Running) -> None:
    runtime, stages = running
    texts = ["a" * 3, "short", "b" * 90, "c"]
    with runtime.flights.admit(OUTPUTS) as ticket:
        outputs = [output async for output in spoken(ticket, pieces(*texts))]
    sounds = [output for output in outputs if isinstance(output, AudioOutput)]
    one_frame = PCM[: 2 * SAMPLES_PER_FRAME]
    assert b"".join(sound.data for sound in sounds) == PCM + one_frame + PCM + PCM
    assert [sound.last for sound in sounds] == [False] * (len(sounds) - 1) + [True]
    assert begun(stages) == texts
    assert not any(stage.cancelled for stage in stages.stages.values())


async def test_the_next_piece_begins_when_the_one_before_is_nearly_spoken(
    running: Running,
) -> None:
    runtime, stages = running
    due_s = len("endless") / CHARACTERS_PER_S
    with runtime.flights.admit(OUTPUTS) as ticket:
        async with aclosing(spoken(ticket, pieces("endless", "words", "more"))) as outputs:
            sound_s = 0.0
            async for output in outputs:
                if isinstance(output, AudioOutput):
                    sound_s += output.samples.seconds(len(output.data))
                await asyncio.sleep(0)
                assert begun(stages)[1:] == [] or sound_s >= due_s
                if sound_s > 3 * due_s:
                    break
            # Its first sound is there before anyone asks for it, and the third waits for its turn.
            assert begun(stages) == ["endless", "words"]
            assert len(ticket.flights) == MAX_BEGUN
            await eventually(lambda: "audio" in ticket.flights[1].first_at)
    await settled(stages)


async def test_an_answer_has_one_place_however_many_pieces_it_has(running: Running) -> None:
    runtime, _ = running
    with runtime.flights.admit(OUTPUTS) as ticket:
        async with aclosing(spoken(ticket, pieces("endless", "endless"))) as outputs:
            async for _ in outputs:
                assert runtime.flights.num_running + runtime.flights.num_waiting == 1
                if len(ticket.flights) == 2:
                    break
            assert runtime.flights.num_running == 1
            with runtime.flights.admit(OUTPUTS), pytest.raises(ApiError):
                runtime.flights.admit(OUTPUTS)
    assert runtime.flights.num_running + runtime.flights.num_waiting == 0


async def test_closing_it_cancels_every_piece_that_has_begun(running: Running) -> None:
    runtime, stages = running
    with runtime.flights.admit(OUTPUTS) as ticket:
        async with aclosing(spoken(ticket, pieces("endless", "endless", "words"))) as outputs:
            async for _ in outputs:
                if len(ticket.flights) == 2 and len(begun(stages)) == 2:
                    break
    await settled(stages)
    for stage in stages.stages.values():
        assert len(stage.cancelled) == 2


async def test_closing_it_before_a_piece_has_said_anything_cancels_it(running: Running) -> None:
    runtime, stages = running
    with runtime.flights.admit(OUTPUTS) as ticket:
        async with aclosing(spoken(ticket, pieces("hang", "words"))) as answer:
            asking = asyncio.ensure_future(anext(answer))
            await eventually(lambda: begun(stages) == ["hang"])
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    await settled(stages)
    assert begun(stages) == ["hang"]


async def test_a_piece_that_fails_ends_the_answer_after_what_came_before(
    running: Running,
) -> None:
    runtime, stages = running
    data = bytearray()

    async def listen(ticket: Ticket) -> None:
        async for output in spoken(ticket, pieces("words", "break", "words", "words")):
            data.extend(output.data if isinstance(output, AudioOutput) else b"")

    with runtime.flights.admit(OUTPUTS) as ticket, pytest.raises(ApiError):
        await listen(ticket)
    assert data == PCM + PCM[: 2 * SAMPLES_PER_FRAME]
    await settled(stages)
    assert begun(stages)[:2] == ["words", "break"]
    assert len(begun(stages)) <= 3


async def test_the_death_of_a_stage_ends_all_pieces(running: Running) -> None:
    runtime, stages = running

    async def listen(ticket: Ticket) -> None:
        async for _ in spoken(ticket, pieces("endless", "endless")):
            if len(ticket.flights) == 2:
                stages.stages["talker"].kill()

    with runtime.flights.admit(OUTPUTS) as ticket, pytest.raises(ApiError) as caught:
        await listen(ticket)
    assert caught.value.code == "stage_unavailable"
    assert runtime.flights.num_running == 0


async def test_stages_that_are_to_sleep_wait_for_the_last_piece(running: Running) -> None:
    runtime, stages = running
    links = list(runtime.fleet.stages.values())
    data = b""
    with runtime.flights.admit(OUTPUTS) as ticket:
        answer = spoken(ticket, pieces("a", "b", "c"))
        first = await anext(answer)
        runtime.fleet.refuse_requests(links)
        draining = asyncio.create_task(runtime.flights.drained(links))
        data += first.data if isinstance(first, AudioOutput) else b""
        async for output in answer:
            assert not draining.done()
            data += output.data if isinstance(output, AudioOutput) else b""
            await asyncio.sleep(0.01)
        async with asyncio.timeout(600):
            await draining
    assert data == 3 * PCM
    assert not stages.running

"""Requests in the graph: cancels, back-pressure, deadlines, several outputs."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path

import httpx
import pytest
from support.fakes.stages import FakeGraph
from support.faults.hanging_up import hang_up
from support.gateway.chats import TEXT, URL, request_of, settle, spoken
from support.gateway.serving import (
    MIXED,
    OMNI,
    RunningGateway,
    SharedConnector,
    outputs_of,
    running_gateway,
)
from support.waiting import until, wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.server.common.trace import GATEWAY, RECEIVED
from omnistage.server.runtime.flight import Flight
from omnistage.server.runtime.request import ImageOutput, TextOutput
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_gateway import Queued, Step

NUM_AT_ONCE = 8

# Over HTTP


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_cancels_on_every_stage(stream: bool, gateway: RunningGateway) -> None:
    stages = gateway.stages.stages
    before = {name: len(stage.cancelled) for name, stage in stages.items()}
    if stream:
        body = spoken("endless", stream=True)
        with httpx.stream("POST", gateway.url + URL, json=body, timeout=600) as response:
            next(response.iter_lines())
    else:
        code2wav = stages["code2wav"]
        hang_up(gateway.url + URL, lambda: code2wav.tasks, json=spoken("endless"))
    settle(gateway)
    for name, stage in stages.items():
        assert len(stage.cancelled) == before[name] + 1


def test_hanging_up_while_nothing_has_come_cancels_too(gateway: RunningGateway) -> None:
    thinker = gateway.stages.stages["thinker"]
    hang_up(gateway.url + URL, lambda: thinker.tasks, json=spoken("hang", stream=True))
    settle(gateway)


def test_of_requests_that_come_at_once_the_first_is_sent_before_the_last_is_read(
    gateway: RunningGateway,
) -> None:
    """A stage that is free begins with it."""
    flights: list[Flight] = []
    gateway.do(lambda: gateway.runtime.flights.watch(flights.append))
    address = httpx.URL(gateway.url)
    body = json.dumps({**TEXT, "stream": True}).encode()
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    asked = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(NUM_AT_ONCE):
            client = socket.create_connection((address.host, address.port), timeout=600)
            clients.append(stack.enter_context(client))
        gateway.do(lambda: None)  # all are connected
        gateway.hold(0.2)
        for client in clients:
            client.sendall(asked)
        for client in clients:
            assert b"[DONE]" in b"".join(iter(partial(client.recv, 1 << 16), b""))
    marks = [flight.trace.timeline.marks for flight in flights]
    assert len(marks) == NUM_AT_ONCE
    read_at = [one[GATEWAY, RECEIVED] for one in marks]
    sent_at = [one[GATEWAY, "sent"] for one in marks]
    assert min(sent_at) < max(read_at)


def test_a_silent_stream_is_kept_alive(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, keep_alive_s=0.05) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
        client.stream("POST", URL, json=spoken("hang", stream=True)) as response,
    ):
        lines = response.iter_lines()
        assert [next(lines), next(lines), next(lines)] == [": keep-alive", "", ": keep-alive"]


@pytest.mark.parametrize(
    ("script", "deadlines"),
    [
        ("hang", {"first_chunk_s": 0.3}),
        ("crash", {"first_chunk_s": 0.3}),
        ("stall", {"next_chunk_s": 0.3}),
    ],
)
def test_an_output_that_does_not_come_in_time_fails_its_request(
    script: str, deadlines: dict[str, float], tmp_path: Path
) -> None:
    with (
        running_gateway(tmp_path, {**OMNI, "deadlines": deadlines}) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        started = time.monotonic()
        refused = client.post(URL, json=spoken(script))
        assert time.monotonic() - started >= 0.3
        assert refused.status_code == 504
        error = refused.json()["error"]
        assert error["code"] == "stage_timeout"
        assert ("thinker" if script == "hang" else "code2wav") in error["message"]
        settle(gateway)


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, max_unsent_bytes=1 << 18) as gateway,
        socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as deaf,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({**TEXT, "messages": [{"role": "user", "content": "flood"}]})
        body = body[:-1] + ', "stream": true}'
        head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        thinker = gateway.stages.stages["thinker"]
        wait_until(lambda: len(thinker.cancelled) == 1)
        settle(gateway)
        assert client.post(URL, json=TEXT).status_code == 200


# Without HTTP


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Runtime, FakeGraph]]:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate(OMNI)
    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        await runtime.fleet.loaded()
        yield runtime, stages


async def test_outputs_end_when_each_kind_has_ended(
    running: tuple[Runtime, FakeGraph],
) -> None:
    runtime, stages = running
    outputs = [output async for output in outputs_of(runtime, request_of("words", "text", "audio"))]
    assert sum(output.last for output in outputs) == 2
    assert not any(stage.cancelled for stage in stages.stages.values())


async def test_a_request_is_sent_before_it_is_asked_for_and_cancelled_with_its_place(
    running: tuple[Runtime, FakeGraph],
) -> None:
    runtime, stages = running
    request = request_of("endless", "text", "audio")
    with runtime.flights.admit(request.message.outputs) as ticket:
        outputs = ticket.run(request)
        await until(lambda: request.id in stages.running)
    await until(lambda: not stages.running)
    assert all(stage.cancelled == [request.id] for stage in stages.stages.values())
    await outputs.aclose()  # nobody ever asked for any


async def test_a_slow_client_holds_its_own_request_only(
    running: tuple[Runtime, FakeGraph],
) -> None:
    runtime, stages = running
    thinker = stages.stages["thinker"]
    request = request_of("endless", "text")
    async with aclosing(outputs_of(runtime, request)) as slow:
        await anext(slow)
        await until(lambda: thinker.num_sent > 1 and not thinker.outputs.credit(request.id))
        held = thinker.num_sent
        await asyncio.sleep(0.05)
        assert thinker.num_sent == held < 20
        outputs = [output async for output in outputs_of(runtime, request_of("words", "text"))]
        assert isinstance(outputs[-1], TextOutput)
        assert outputs[-1].last
        held = thinker.num_sent
        for _ in range(10):
            await anext(slow)
        await until(lambda: thinker.num_sent > held)
    await until(lambda: len(thinker.cancelled) == 1)


async def test_a_stage_is_not_overdue_for_the_time_that_its_client_took(tmp_path: Path) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate({**OMNI, "deadlines": {"next_chunk_s": 1.0}})
    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        await runtime.fleet.loaded()
        request = request_of("endless", "text", "audio")
        async with aclosing(outputs_of(runtime, request)) as slow:
            for _ in range(2):
                await anext(slow)
                await asyncio.sleep(1.2)
            for _ in range(100):
                await anext(slow)


async def test_who_waits_for_others_in_a_stage_has_its_whole_time_afterwards(
    running: tuple[Runtime, FakeGraph],
) -> None:
    runtime, stages = running
    stage = stages.stages["thinker"]
    request = request_of("hang", "text")
    with runtime.flights.admit(request.message.outputs) as ticket:
        outputs = ticket.run(request)
        await until(lambda: request.id in stages.running)
        (flight,) = ticket.flights
        credit = stage.outputs.credit(request.id)

        def is_later(than: float) -> bool:
            return flight.deadlines["text"] > than

        for _ in range(credit + 1):
            due_at = flight.deadlines["text"]
            stage.outputs.send(Chunk(request.id, Queued()))
            await until(partial(is_later, due_at))
        assert flight.may_go_again  # nothing of it has come
        assert stage.outputs.credit(request.id) == credit
    await outputs.aclose()


async def test_steps_of_a_stage_before_an_output_put_it_off_and_do_not_begin_it(
    tmp_path: Path,
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    async with Runtime(
        StageGraph.model_validate(MIXED), tmp_path, stages.launch, shared
    ) as runtime:
        await runtime.fleet.loaded()
        request = request_of("hang", "text", "image")
        with runtime.flights.admit(request.message.outputs) as ticket:
            outputs = ticket.run(request)
            await until(lambda: request.id in stages.stages["thinker"].tasks)
            (flight,) = ticket.flights
            thinker = stages.stages["thinker"]
            credit = thinker.outputs.credit(request.id)
            for step in (1, 2):
                due_at = flight.deadlines["image"]
                thinker.outputs.send(Chunk(request.id, Step("image", step, 2)))
                told = await anext(outputs)
                assert isinstance(told, ImageOutput)
                assert (told.stage, told.step, told.num_steps) == ("thinker", step, 2)
                assert flight.deadlines["image"] > due_at
            assert flight.may_go_again  # nothing of the image has come
            assert not flight.first_at
            await until(lambda: thinker.outputs.credit(request.id) == credit)
        await outputs.aclose()


async def test_many_cancels_leak_no_credit(running: tuple[Runtime, FakeGraph]) -> None:
    runtime, stages = running
    for _ in range(200):
        async with aclosing(outputs_of(runtime, request_of("endless", "text", "audio"))) as outputs:
            await anext(outputs)
    await until(lambda: not stages.running)

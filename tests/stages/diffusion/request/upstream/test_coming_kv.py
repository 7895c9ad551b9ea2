"""Keys and values among the arguments that come from upstream."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.waiting import pass_over

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.diffusion.request.upstream.coming_arguments import Upstream, placed
from omnistage.stages.diffusion.request.upstream.coming_kv import kv_bytes_of
from omnistage.stages.messages.arguments import ArgumentsToCome, KvToCome
from omnistage.stages.messages.edge import EDGE, KeysAndValues
from omnistage.stages.messages.edge import Edge as Message
from omnistage.stages.messages.to_gateway import TO_GATEWAY, Queued
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.stage import StagePorts

CPU = torch.device("cpu")
LIMIT_S = 600.0
KV = {"contexts": [torch.randn(2, 2, length, 1, 4).to(torch.bfloat16) for length in (5, 3)]}
NUM_BYTES = 8 * 2 * 2 * 4 * 2
TO_COME = ArgumentsToCome(values={"prefix_tokens": 2}, kv={"contexts": KvToCome([5, 3])})


def part(number: int, start: int, end: int, request_id: str = "a") -> Chunk[Message]:
    kv = KV["contexts"][number][:, :, start:end].contiguous()
    data = bytearray(kv.view(torch.uint8).numpy().tobytes())
    tensors = {"kv": Tensor("bfloat16", tuple(kv.shape), data)}
    return Chunk(request_id, KeysAndValues("contexts", number), start, tensors)


PARTS = [part(1, 1, 3), part(0, 0, 2), part(0, 2, 5), part(0, 0, 2), part(1, 0, 1)]


class Edge:
    """The channel into a stage with so much room, in bytes."""

    def __init__(self, directory: Path, num_bytes: int) -> None:
        connector = make_connector("shm", directory, {"credit": 2})
        for address in ("ar.dit.rows", "dit.gateway"):
            connector.create(address)
        self.sender = connector.sender("ar.dit.rows")
        self.receiver = connector.receiver("ar.dit.rows", EDGE)
        self._outputs = connector.sender("dit.gateway")
        self._gateway = connector.receiver("dit.gateway", TO_GATEWAY)
        options = {"kv_gib": num_bytes / (1 << 30)}
        ports = StagePorts("dit", "a", {}, options, self._outputs, source="ar")
        ports.source_kind = "qwen_image.text_encoder"
        ports.ledger = str(directory / "dit.held")
        ports.deadlines = Deadlines(first_chunk_s=LIMIT_S, next_chunk_s=LIMIT_S)
        self._ledger = Ledger(directory / "dit.held")
        self.upstream = Upstream(ports)

    @property
    def held(self) -> dict[str, int]:
        return {name: count for name, count in self._ledger.read().items() if count}

    def send(self, *chunks: Chunk[Message]) -> None:
        """Each overwrites what the channel had of the one before."""
        for chunk in chunks:
            self.sender.send(chunk)
            received = self.receiver.receive()
            assert received is not None
            self.upstream.receive(self.receiver, received)

    def queued(self) -> set[str]:
        """The requests of which the gateway was told since that they wait for others."""
        self._outputs.flush()
        told = set()
        while (chunk := self._gateway.receive()) is not None:
            assert isinstance(chunk.message, Queued)
            self._gateway.grant(chunk.request_id)
            self._outputs.flush()
            told.add(chunk.request_id)
        return told

    def close(self) -> None:
        ends = self.sender, self.receiver, self._gateway, self._outputs, self._ledger, self.upstream
        for end in ends:
            end.close()


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Edge]:
    edge = Edge(tmp_path, 3 * NUM_BYTES // 2)
    yield edge
    edge.close()


async def pass_time(seconds: float) -> None:
    """Run what can run, then set the loop's clock forward, and run what is due then."""
    for _ in range(10):
        await asyncio.sleep(0)
    pass_over(asyncio.get_running_loop(), seconds)
    for _ in range(10):
        await asyncio.sleep(0)


def credit(edge: Edge, request_id: str) -> int:
    edge.sender.flush()
    return edge.sender.credit(request_id)


async def test_they_are_an_argument_however_they_come_and_hold_memory_until_released(
    edge: Edge,
) -> None:
    waiting = asyncio.create_task(edge.upstream.all_of("a", TO_COME, CPU))
    edge.send(PARTS[0])  # the task has not begun yet
    await asyncio.sleep(0)
    edge.send(*PARTS[1:])
    arguments = (await waiting).arguments(CPU, torch.float32)
    assert arguments.keys() == {"contexts", "prefix_tokens"}
    for got, expected in zip(arguments["contexts"], KV["contexts"], strict=True):
        assert torch.equal(got, expected)  # in the engine's dtype
    assert edge.held == {"kv_bytes": NUM_BYTES}
    assert edge.receiver.num_requests == 0
    edge.upstream.release("a")
    assert edge.held == {}


async def test_who_waits_for_room_holds_its_credit_and_is_not_overdue(edge: Edge) -> None:
    first = asyncio.create_task(edge.upstream.all_of("a", TO_COME, CPU))
    second = asyncio.create_task(edge.upstream.all_of("b", TO_COME, CPU))
    await asyncio.sleep(0)
    edge.send(*PARTS)
    await first
    edge.send(part(0, 0, 5, "b"), part(1, 0, 2, "b"))
    assert credit(edge, "b") == 0
    for _ in range(3):
        await pass_time(2 * LIMIT_S)
        assert edge.queued() == {"b"}  # it would be late there as well
    assert not second.done()
    assert edge.held == {"late_inputs": 1, "kv_bytes": NUM_BYTES}
    edge.upstream.release("a")
    assert credit(edge, "b") == 2
    edge.send(part(1, 2, 3, "b"))
    got = (await second).arguments(CPU, torch.float32)["contexts"]
    assert all(map(torch.equal, got, KV["contexts"]))
    edge.upstream.release("b")
    assert edge.held == {}


async def test_who_has_room_or_waits_for_nobody_is_not_reported_as_queued(edge: Edge) -> None:
    first = asyncio.create_task(edge.upstream.all_of("a", TO_COME, CPU))
    await asyncio.sleep(0)
    edge.send(*PARTS[:2])
    await pass_time(LIMIT_S / 2)
    assert edge.queued() == set()
    await pass_time(LIMIT_S)
    assert first.done()
    with pytest.raises(RequestError, match="ar -> dit: the next chunk of stage ar"):
        await first
    edge.upstream.release("a")


async def test_who_waits_behind_a_full_engine_is_not_late_while_others_draw(edge: Edge) -> None:
    """The engine upstream computes nothing of it: its blocks hold what waits for room here."""
    tasks = [asyncio.create_task(edge.upstream.all_of(one, TO_COME, CPU)) for one in "abc"]
    await asyncio.sleep(0)
    edge.send(*PARTS, part(0, 0, 5, "b"))
    await tasks[0]
    for _ in range(3):
        await pass_time(2 * LIMIT_S)
        assert edge.queued() == {"b", "c"}
    edge.upstream.release("a")
    edge.send(part(1, 0, 3, "b"))
    await tasks[1]
    await pass_time(LIMIT_S / 2)
    assert edge.queued() == set()
    await pass_time(LIMIT_S)  # nobody waits for room: nothing excuses that it does not come
    assert tasks[2].done()
    with pytest.raises(RequestError, match="ar -> dit: the next chunk of stage ar"):
        await tasks[2]


async def test_who_has_room_and_is_not_complete_is_late_though_others_wait(edge: Edge) -> None:
    """It waits for blocks, perhaps, that those hold who wait for its room: else all would stay."""
    tasks = [asyncio.create_task(edge.upstream.all_of(one, TO_COME, CPU)) for one in "ab"]
    await asyncio.sleep(0)
    edge.send(PARTS[0], part(0, 0, 5, "b"))
    await pass_time(2 * LIMIT_S)
    assert tasks[0].done()
    with pytest.raises(RequestError, match="ar -> dit: the next chunk of stage ar"):
        await tasks[0]
    edge.upstream.release("a")
    edge.send(part(1, 0, 3, "b"))
    await tasks[1]


async def test_a_request_that_is_cancelled_leaves_its_place_to_the_next(edge: Edge) -> None:
    tasks = [asyncio.create_task(edge.upstream.all_of(one, TO_COME, CPU)) for one in "abc"]
    await asyncio.sleep(0)
    edge.send(*PARTS)
    await tasks[0]
    edge.send(part(0, 0, 5, "b"))
    edge.send(part(0, 0, 5, "c"), part(1, 0, 3, "c"))
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    for one in "ba":
        edge.upstream.release(one)
        edge.receiver.forget(one)
    await tasks[2]
    edge.upstream.release("c")
    assert edge.held == {}


async def test_more_than_all_room_is_the_request_s_failure(edge: Edge) -> None:
    to_come = ArgumentsToCome(kv={"contexts": KvToCome([500])})
    waiting = asyncio.create_task(edge.upstream.all_of("a", to_come, CPU))
    await asyncio.sleep(0)
    edge.send(part(0, 0, 2))
    with pytest.raises(RequestError, match="has 500 tokens with its context") as failure:
        await waiting
    assert (failure.value.status, failure.value.param) == (400, "prompt")
    edge.upstream.release("a")
    assert edge.held == {}


@pytest.mark.parametrize("gib", [0, -1, "much", True, float("nan"), float("inf")])
def test_an_option_that_is_no_size_is_refused(gib: object) -> None:
    ports = StagePorts("dit", "a", {}, {"kv_gib": gib}, outputs=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"options.kv_gib of stage dit is .*; a number above 0"):
        kv_bytes_of(ports)


def test_lists_of_arrays_are_stand_ins_too() -> None:
    made = placed(
        {"contexts": [part.float().numpy() for part in KV["contexts"]]}, CPU, torch.bfloat16
    )
    assert all(map(torch.equal, made["contexts"], KV["contexts"]))

"""Keys and values go along an edge: from blocks of a cache into tensors of a request."""

import select
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support.bridge.kv_layers import SIZE, Model
from support.waiting import wait_until

from omnistage.connectors import make_connector
from omnistage.connectors.sweep import make_run_directory
from omnistage.stages.diffusion.request.upstream.coming_kv import ComingKv, KvRoom
from omnistage.stages.messages.arguments import KvToCome
from omnistage.stages.messages.edge import EDGE, KeysAndValues
from omnistage.stages.vllm.kv.kv_meta import DueKv
from omnistage.stages.vllm.kv.kv_sender import KvSender
from omnistage.stages.vllm.step.request_options import RequestOptions
from omnistage.stages.worker.ledger import Ledger

CPU = torch.device("cpu")
ADDRESS = "ar.dit.rows"
NAME = "contexts"
CREDIT = 2
TOKENS = 4 * SIZE  # 96 KiB: more than fits beside itself into half of the room below


class Edge:
    """A model's caches, the engine's end of an edge and that of the stage after it."""

    def __init__(self, directory: Path, connector: str, room_bytes: int) -> None:
        self.directory = directory
        self.connector = make_connector(connector, directory, {"arena_mb": 1, "credit": CREDIT})
        self.connector.create(ADDRESS)
        self.model = Model.of()
        self.ledger = Ledger(directory / "ar.held")
        self.sender = KvSender(
            {"dit": self.connector.sender(ADDRESS)}, self.model.cached, self.ledger
        )
        self.receiver = self.connector.receiver(ADDRESS, EDGE)
        self.room = KvRoom(room_bytes, lambda: None)
        self.coming: dict[str, ComingKv] = {}
        self.num_chunks = 0

    def send(
        self, request_id: str, blocks: Sequence[int], num_tokens: int, number: int = 0
    ) -> None:
        options = RequestOptions(request_id, kv=KeysAndValues(NAME, number))
        self.sender.start(DueKv(f"{request_id}-{number}", options, list(blocks), num_tokens))

    def expect(self, request_id: str, *lengths: int) -> ComingKv:
        to_come = {NAME: KvToCome(list(lengths))}
        self.coming[request_id] = ComingKv(to_come, self.room, CPU, lambda: None)
        return self.coming[request_id]

    def receive(self) -> None:
        """Take what is there, as a stage's process does."""
        while (chunk := self.receiver.receive()) is not None:
            self.num_chunks += 1
            assert isinstance(chunk.message, KeysAndValues)
            if chunk.request_id in self.coming:
                self.coming[chunk.request_id].add(chunk.message, self.receiver, chunk)
            else:
                self.receiver.forget(chunk.request_id)

    def receive_until(self, is_true: Callable[[], object]) -> None:
        def come() -> object:
            self.receive()
            return is_true()

        wait_until(come)

    @property
    def held(self) -> dict[str, int]:
        return {name: count for name, count in self.ledger.read().items() if count}

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        self.ledger.close()
        self.connector.destroy(ADDRESS)


@pytest.fixture
def open_edge() -> Iterator[Callable[..., Edge]]:
    run = make_run_directory()
    opened: list[Edge] = []

    def make(connector: str = "shm", room_bytes: int = 1 << 20) -> Edge:
        opened.append(Edge(run.path, connector, room_bytes))
        return opened[-1]

    yield make
    for edge in opened:
        edge.close()
    run.remove()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a chunk that holds 8 tokens of the model."""
    monkeypatch.setattr("omnistage.stages.vllm.kv.kv_sender.CHUNK_BYTES", 8 * 1536)
    return 8


@pytest.mark.parametrize("connector", ["shm", "tcp"])
def test_what_arrives_has_the_bits_of_the_blocks(
    open_edge: Callable[..., Edge], connector: str, small_chunks: int
) -> None:
    edge = open_edge(connector)
    kv = edge.model.fill([3, 1, 7, 5], TOKENS, seed=1)
    other = edge.model.fill([2, 0], 19, seed=2)
    coming = edge.expect("a", TOKENS, 19)
    edge.send("a", [3, 1, 7, 5], TOKENS)
    edge.send("a", [2, 0], 19, number=1)
    edge.receive_until(lambda: coming.is_complete)
    assert torch.equal(coming.tensors[NAME][0], kv)
    assert torch.equal(coming.tensors[NAME][1], other)
    assert edge.num_chunks == TOKENS // small_chunks + 3
    edge.receive_until(lambda: not edge.held)
    assert not edge.sender.sending
    assert edge.receiver.num_requests == 0


def test_a_chunk_that_is_too_large_for_the_channel_leaves_in_parts(
    open_edge: Callable[..., Edge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.stages.vllm.kv.kv_sender.CHUNK_BYTES", 4 << 20)
    edge = open_edge()
    blocks = [*range(9)] * 4  # 885 KB, of an arena of 1 MiB
    kv = edge.model.fill(range(9), 9 * SIZE)
    coming = edge.expect("a", 4 * 9 * SIZE)
    edge.send("a", blocks, 4 * 9 * SIZE)
    edge.receive_until(lambda: coming.is_complete)
    assert torch.equal(coming.tensors[NAME][0], kv.repeat(1, 1, 4, 1, 1))
    assert edge.num_chunks >= 2


def test_nothing_is_read_from_blocks_without_credit_and_nothing_after_a_cancel(
    open_edge: Callable[..., Edge], small_chunks: int
) -> None:
    edge = open_edge(room_bytes=TOKENS * 1536)
    first, second = edge.expect("a", TOKENS), edge.expect("b", TOKENS)
    edge.model.fill([0, 1, 2, 3], TOKENS, seed=1)
    edge.send("a", [0, 1, 2, 3], TOKENS)
    edge.receive_until(lambda: first.is_complete)
    edge.send("b", [0, 1, 2, 3], TOKENS)
    # There is room for one of the two: the other sends what it has credit for.
    left = (TOKENS - CREDIT * small_chunks) * 1536
    edge.receive_until(lambda: edge.held.get("kv_bytes") == left)
    assert second.is_waiting
    assert edge.sender.sending == {"b-0"}
    edge.sender.drop("b-0")
    assert not edge.sender.sending  # its blocks may be written now
    later = edge.model.fill([0, 1, 2, 3], TOKENS, seed=2)
    second.release()
    edge.receiver.forget("b")
    del edge.coming["b"]
    first.release()
    assert edge.room.num_taken == 0
    third = edge.expect("c", TOKENS)
    edge.send("c", [0, 1, 2, 3], TOKENS)
    edge.receive_until(lambda: third.is_complete)
    assert torch.equal(third.tensors[NAME][0], later)
    edge.receive_until(lambda: not edge.held)


def test_who_waits_for_room_gets_it_in_order_and_then_all_of_its_own(
    open_edge: Callable[..., Edge], small_chunks: int
) -> None:
    edge = open_edge(room_bytes=TOKENS * 1536)
    kvs = []
    for number, request_id in enumerate("abc"):
        blocks = [2 * number, 2 * number + 1]
        kvs.append(edge.model.fill(blocks, 2 * SIZE, seed=number))
        edge.expect(request_id, 2 * SIZE)
        edge.send(request_id, blocks, 2 * SIZE)
    a, b, c = edge.coming.values()
    edge.receive_until(lambda: a.is_complete and b.is_complete)
    assert edge.room.num_taken == edge.room.num_bytes
    edge.receive_until(lambda: c.is_waiting)
    assert not c.is_complete
    a.release()
    edge.receive_until(lambda: c.is_complete)
    assert torch.equal(c.tensors[NAME][0], kvs[2])
    assert torch.equal(b.tensors[NAME][0], kvs[1])
    for one in (b, c):
        one.release()
    assert edge.room.num_taken == 0
    edge.receive_until(lambda: not edge.held)


def test_who_waits_until_a_request_has_left_is_woken_by_none_of_its_chunks(
    open_edge: Callable[..., Edge], small_chunks: int
) -> None:
    """An engine's thread would begin an idle step at each, and hold the sender's up."""
    edge = open_edge()
    coming = edge.expect("a", TOKENS)
    edge.send("a", [0, 1, 2, 3], TOKENS)
    wait_until(lambda: edge.held.get("kv_bytes") == (TOKENS - CREDIT * small_chunks) * 1536)

    def sent_until_woken() -> set[str]:
        edge.sender.wait(600)
        return edge.sender.sending

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sent_until_woken)
        edge.receive_until(lambda: coming.is_complete)
        assert waiting.result() == set()


def test_a_request_that_never_fits_the_room_is_refused(open_edge: Callable[..., Edge]) -> None:
    edge = open_edge(room_bytes=1000)
    coming = edge.expect("a", TOKENS)
    edge.send("a", [0, 1, 2, 3], TOKENS)
    edge.receive_until(lambda: coming.error)
    assert coming.error is not None
    assert (coming.error.status, coming.error.param) == (400, "prompt")
    assert "has 64 tokens with its context" in str(coming.error)
    edge.receiver.forget("a")
    del edge.coming["a"]
    edge.receive_until(lambda: not edge.held)


def test_a_reader_that_died_leaves_no_blocks_held(
    open_edge: Callable[..., Edge], small_chunks: int
) -> None:
    """The gateway renews the channel: what is left of the request is not even read."""
    edge = open_edge()
    edge.send("a", [0, 1, 2, 3], TOKENS)
    wait_until(lambda: edge.held.get("kv_bytes") == (TOKENS - CREDIT * small_chunks) * 1536)
    edge.receiver.close()  # as a dead process does, without a word
    edge.connector.renew(ADDRESS)
    wait_until(lambda: not edge.held)
    assert not edge.sender.sending
    edge.receiver = edge.connector.receiver(ADDRESS, EDGE)
    kv = edge.model.fill([5], 9)
    coming = edge.expect("b", 9)
    edge.send("b", [5], 9)
    edge.receive_until(lambda: coming.is_complete)
    assert torch.equal(coming.tensors[NAME][0], kv)


def test_an_engine_that_died_on_the_way_leaves_no_part_that_counts(
    open_edge: Callable[..., Edge], small_chunks: int
) -> None:
    edge = open_edge()
    coming = edge.expect("a", TOKENS)
    edge.send("a", [0, 1, 2, 3], TOKENS)
    assert select.select([edge.receiver.fileno()], [], [], 60)[0]
    edge.sender.close()
    edge.receive()
    edge.connector.renew(ADDRESS)
    edge.receive()
    assert not coming.is_complete
    coming.release()
    assert (edge.room.num_taken, edge.receiver.num_requests) == (0, 0)

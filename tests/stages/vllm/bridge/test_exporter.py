"""Chunks of an edge's sizes, from what each step computed."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.pipe_sender import PipeSender
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChunkTooLarge
from omnistage.connectors.shm import ShmConnector, ShmOptions
from omnistage.stages.messages.edge import EDGE
from omnistage.stages.vllm.bridge.blocked import BlockedRows
from omnistage.stages.vllm.bridge.exporter import Exported, Exporter
from omnistage.stages.vllm.rows.cached_rows import CachedRows
from omnistage.stages.vllm.step.request_options import RequestOptions
from omnistage.stages.vllm.step.step import Finished, Ints, Replay, StartedRequest
from omnistage.stages.vllm.step.step_schema import NO_FRAME, Export

NUM_CODES = 3
CODES = Export("codes", "frame", "int32")


class Sent(PipeSender):
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[Chunk] = []

    def send(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def frames_step(rows: Ints, frame: int, **more: Any) -> Exported:
    """One frame of each row; its codes say which."""
    codes = torch.from_numpy(rows)[:, None] * 1000 + frame * 10 + torch.arange(NUM_CODES)
    return Exported(rows, np.full(len(rows), frame, np.int32), codes.int(), None, **more)


def exported(sizes: list[int], *steps: Exported) -> list[Chunk]:
    sent: Any = Sent()
    exporter = Exporter({"next": (sent, sizes)}, CODES, num_rows=4)
    for step in steps:
        exporter.put(step)
    exporter.close()
    return list(sent.chunks)


def of(chunks: list[Chunk], request_id: str) -> list[tuple[int, list[int], bool]]:
    """Of one request: first frame, its frames by their first code, whether it is the last."""
    return [
        (
            chunk.index,
            chunk.tensors["codes"].numpy()[:, 0].tolist() if chunk.tensors else [],
            chunk.last,
        )
        for chunk in chunks
        if chunk.request_id == request_id
    ]


def started(row: int, name: str, **options: Any) -> StartedRequest:
    return StartedRequest(row, name, RequestOptions(name, **options))


def test_an_exporter_that_waits_for_credit_closes_at_once() -> None:
    times = []
    for _ in range(5):
        sent: Any = Sent()
        exporter = Exporter({"next": (sent, [1])}, CODES, num_rows=4)
        began = time.monotonic()
        exporter.close()
        times.append(time.monotonic() - began)
    assert min(times) < 0.2


def test_chunks_grow_by_the_edges_sizes_and_the_rest_comes_last() -> None:
    chunks = exported(
        [1, 2],
        frames_step(ints(2, 3), 0, started=[started(2, "a"), started(3, "b")]),
        *(frames_step(ints(2, 3), frame) for frame in range(1, 4)),
        frames_step(ints(3), 4, finished=[Finished(2, "a")]),
        Exported(ints(), ints(), None, None, finished=[Finished(3, "b")]),
    )
    assert of(chunks, "a") == [
        (0, [2000], False),
        (1, [2010, 2020], False),
        (3, [2030], True),
    ]
    assert of(chunks, "b") == [
        (0, [3000], False),
        (1, [3010, 3020], False),
        (3, [3030, 3040], False),
        (0, [], True),
    ]
    assert chunks[0].tensors["positions"].numpy().tolist() == [0]


def test_a_step_that_was_fed_the_end_of_speech_sends_no_frame() -> None:
    """With async scheduling it runs before the end is known; other requests' frames leave."""
    fed_end = frames_step(ints(1, 2), 1)
    assert fed_end.values is not None
    fed_end.values[0, 0] = NO_FRAME
    chunks = exported(
        [1],
        frames_step(ints(1, 2), 0, started=[started(1, "a"), started(2, "b")]),
        fed_end,
        Exported(ints(), ints(), None, None, finished=[Finished(1, "a"), Finished(2, "b")]),
    )
    assert of(chunks, "a") == [(0, [1000], False), (0, [], True)]
    assert of(chunks, "b") == [(0, [2000], False), (1, [2010], False), (0, [], True)]


def test_without_sizes_an_answer_goes_whole() -> None:
    steps = [frames_step(ints(1), frame) for frame in range(1, 30)]
    done = Exported(ints(), ints(), None, None, finished=[Finished(1, "a")])
    chunks = exported([], frames_step(ints(1), 0, started=[started(1, "a")]), *steps, done)
    assert of(chunks, "a") == [(0, [1000 + 10 * frame for frame in range(30)], True)]


def test_a_row_without_a_stream_sends_nothing_and_the_others_do() -> None:
    opened = [started(1, "warm-up", to=[]), started(2, "a")]
    chunks = exported(
        [1],
        frames_step(ints(1, 2), 0, started=opened),
        frames_step(ints(1), 1),
        Exported(ints(), ints(), None, None, finished=[Finished(1, "warm-up"), Finished(2, "a")]),
    )
    assert of(chunks, "a") == [(0, [2000], False), (0, [], True)]
    assert {chunk.request_id for chunk in chunks} == {"a"}


def test_a_row_given_to_another_request_begins_anew() -> None:
    chunks = exported(
        [2],
        frames_step(ints(1), 0, started=[started(1, "a")]),
        frames_step(ints(1), 0, started=[started(1, "b")], finished=[Finished(1, "a")]),
        frames_step(ints(1), 1),
    )
    assert of(chunks, "a") == [(0, [1000], True)]
    assert of(chunks, "b") == [(0, [1000, 1010], False)]


def test_each_edge_has_its_own_chunks_of_the_same_lines() -> None:
    sent: dict[str, Any] = {"one": Sent(), "two": Sent(), "three": Sent()}
    edges = {"one": (sent["one"], [1]), "two": (sent["two"], [3]), "three": (sent["three"], [1])}
    exporter = Exporter(edges, CODES, num_rows=4)
    begun = [started(2, "a", to=["one", "two"]), started(3, "b", to=["three"])]
    for frame in range(4):
        exporter.put(frames_step(ints(2, 3), frame, started=begun if frame == 0 else []))
    exporter.put(Exported(ints(), ints(), None, None, finished=[Finished(2, "a")]))
    exporter.close()
    firsts = {name: of(one.chunks, "a") for name, one in sent.items()}
    assert [codes for _, codes, _ in firsts["one"]] == [[2000], [2010], [2020], [2030], []]
    assert [codes for _, codes, _ in firsts["two"]] == [[2000, 2010, 2020], [2030]]
    assert firsts["three"] == []
    assert [codes for _, codes, _ in of(sent["three"].chunks, "b")] == [
        [3000],
        [3010],
        [3020],
        [3030],
    ]
    assert of(sent["one"].chunks, "b") == of(sent["two"].chunks, "b") == []


def test_another_process_sees_which_rows_their_slowest_edge_blocks(tmp_path: Path) -> None:
    class Slow(Sent):
        def credit(self, request_id: str) -> int:
            return 0 if request_id == "a" else 1

    edges: Any = {"one": (Sent(), [1]), "two": (Slow(), [1])}
    ledger = tmp_path / "held"
    seen = BlockedRows.beside(ledger, 4)
    seen[4] = True  # of a generation that died
    exporter = Exporter(edges, CODES, 4, blocked=BlockedRows.beside(ledger, 4))
    assert not seen[4]
    began = [started(2, "a"), started(3, "b"), started(4, "a alone", to=["one"])]
    exporter.put(frames_step(ints(2, 3, 4), 0, started=began))
    exporter.put(frames_step(ints(), 1, finished=[Finished(3, "b")]))
    wait_until(lambda: seen[2])
    assert not seen[3]
    assert not seen[4]
    exporter.put(frames_step(ints(), 1, finished=[Finished(2, "a")]))
    wait_until(lambda: not seen[2])
    exporter.close()


def test_a_row_is_free_again_with_the_credit_that_comes_back(tmp_path: Path) -> None:
    connector = ShmConnector(tmp_path, ShmOptions(credit=1))
    connector.create("rows")
    sender, receiver = connector.sender("rows"), connector.receiver("rows", EDGE)
    blocked = BlockedRows(tmp_path / "blocked", 4)
    exporter = Exporter({"next": (sender, [1])}, CODES, 4, blocked=blocked)
    exporter.put(frames_step(ints(2), 0, started=[started(2, "a")]))
    for frame in range(1, 20):
        wait_until(lambda: blocked[2])
        assert receiver.receive() is not None
        receiver.grant("a")
        wait_until(lambda: not blocked[2])
        exporter.put(frames_step(ints(2), frame))
    exporter.close()
    receiver.close()
    connector.destroy("rows")
    blocked.close()


def test_a_steps_rows_are_not_copied_before_each_edge_sends_them() -> None:
    sent: dict[str, Any] = {"one": Sent(), "two": Sent()}
    exporter = Exporter(
        {name: (one, [1]) for name, one in sent.items()}, Export("hidden", "row"), num_rows=4
    )
    values = torch.arange(12.0).reshape(4, 3)
    positions = ints(0, 1, 2, 0)
    step = Exported(ints(2, 2, 2, 3), positions, values, None, [started(2, "a"), started(3, "b")])
    exporter.put(step)
    exporter.close()
    for one in sent.values():
        first, second = one.chunks
        assert first.tensors["hidden"].numpy().tolist() == values[:3].tolist()
        assert second.tensors["hidden"].numpy().tolist() == values[3:].tolist()
        for chunk in (first, second):
            assert np.shares_memory(chunk.tensors["hidden"].numpy(), values.numpy())


def test_lines_that_do_not_fit_one_chunk_go_in_several() -> None:
    class Narrow(Sent):
        def send(self, chunk: Chunk) -> None:
            if chunk.num_bytes > 4 * (3 + 1) * 4:  # four lines with their positions
                raise ChunkTooLarge("too large")
            super().send(chunk)

    sent: Any = Narrow()
    exporter = Exporter({"one": (sent, [])}, Export("hidden", "row"), num_rows=4)
    values = torch.arange(33.0).reshape(11, 3)
    begun = [started(2, "a")]
    positions = np.arange(11, dtype=np.int32)
    exporter.put(Exported(np.full(11, 2, np.int32), positions, values, None, begun))
    exporter.put(Exported(ints(), ints(), None, None, finished=[Finished(2, "a")]))
    exporter.close()
    rows = [chunk.tensors["hidden"].numpy() for chunk in sent.chunks]
    assert np.concatenate(rows).tolist() == values.tolist()
    assert [chunk.index for chunk in sent.chunks] == [0, 2, 5, 8]
    assert [chunk.last for chunk in sent.chunks] == [False, False, False, True]


def test_kept_rows_leave_again_bit_for_bit_before_those_that_are_computed() -> None:
    sent: Any = Sent()
    cached = CachedRows(8, (NUM_CODES,), torch.float32)
    exporter = Exporter({"next": (sent, [1])}, Export("h", "row"), num_rows=4, cached=cached)
    first = torch.tensor([[0.1, -0.0, torch.nan], [1e-45, 2.0, 3.0], [4.0, 5.0, 6.0]])
    new = torch.full((2, NUM_CODES), 7.0)
    places = np.array([5, -1, 2])
    alone = Exported(ints(1, 1, 1), ints(3, 4, 5), first, None, [started(1, "a")], places=places)
    replay = Replay(2, ints(8, 9), np.array([2, 5]))
    exporter.put(alone)
    exporter.put(Exported(ints(), ints(), None, None, [started(2, "b")], replays=[replay]))
    # The same step writes where it has read.
    exporter.put(Exported(ints(2, 2), ints(10, 11), new, None, places=np.array([2, 5])))
    exporter.put(
        Exported(
            ints(),
            ints(),
            None,
            None,
            [started(3, "c")],
            replays=[Replay(3, ints(0, 1), np.array([5, 2]))],
        )
    )
    exporter.close()

    def rows(name: str) -> list[tuple[list[int], bytes]]:
        chunks = [chunk for chunk in sent.chunks if chunk.request_id == name]
        return [
            (chunk.tensors["positions"].numpy().tolist(), bytes(chunk.tensors["h"].data))
            for chunk in chunks
        ]

    assert rows("a") == [([3, 4, 5], first.numpy().tobytes())]
    assert rows("b") == [
        ([8, 9], first[[2, 0]].numpy().tobytes()),
        ([10, 11], new.numpy().tobytes()),
    ]
    assert rows("c") == [([0, 1], new.numpy().tobytes())]


HIDDEN = Export("hidden", "row")


def rows_step(positions: list[int], row: int = 1, **more: Any) -> Exported:
    """Rows of one request; each says its position."""
    values = torch.tensor(positions, dtype=torch.float32)[:, None]
    return Exported(np.full(len(positions), row, np.int32), ints(*positions), values, None, **more)


def test_rows_of_drafts_leave_with_the_next_step_if_they_were_accepted() -> None:
    sent: Any = Sent()
    exporter = Exporter({"next": (sent, [])}, HIDDEN, num_rows=2)
    nothing: dict[str, Any] = {"rows": ints(), "positions": ints(), "values": None, "ready": None}
    exporter.put(rows_step([0, 1], started=[started(1, "a")]))
    exporter.put(rows_step([2, 3, 4, 5], num_held=3))
    exporter.put(rows_step([5, 6, 7], accepted=np.array([0, 1]), num_held=2))
    exporter.put(rows_step([6, 7], accepted=np.array([], np.int64), num_held=1))
    end = [Finished(1, "a")]
    begin = [started(1, "b")]
    exporter.put(Exported(**nothing, accepted=np.array([0]), finished=end, started=begin))
    exporter.put(rows_step([0], finished=[]))
    exporter.put(Exported(**nothing, finished=[Finished(1, "b")]))
    exporter.close()
    found = {
        chunk.request_id: chunk.tensors["hidden"].numpy()[:, 0].tolist() for chunk in sent.chunks
    }
    assert found == {"a": [0, 1, 2, 3, 4, 5, 6, 7], "b": [0]}
    assert all(chunk.last for chunk in sent.chunks)

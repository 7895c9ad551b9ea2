"""Chunks of an edge's sizes, from what each step computed."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.bridge.exported import NUM_CODES, Sent, ints, of, started
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.shm import ShmConnector, ShmOptions
from omnistage.stages.messages.edge import EDGE
from omnistage.stages.vllm.bridge.blocked import BlockedRows
from omnistage.stages.vllm.bridge.exporter import Exported, Exporter
from omnistage.stages.vllm.step.step import Finished, Ints
from omnistage.stages.vllm.step.step_schema import NO_FRAME, Export

CODES = Export("codes", "frame", "int32")


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

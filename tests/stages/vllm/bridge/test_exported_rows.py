"""Rows that leave an engine: copied once, cut to fit, kept and drafted ones."""

from typing import Any

import numpy as np
import torch
from support.bridge.exported import NUM_CODES, Sent, ints, started

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChunkTooLarge
from omnistage.stages.vllm.bridge.exporter import Exported, Exporter
from omnistage.stages.vllm.rows.cached_rows import CachedRows
from omnistage.stages.vllm.step.step import Finished, Replay
from omnistage.stages.vllm.step.step_schema import Export


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

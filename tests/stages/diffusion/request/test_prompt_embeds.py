"""Rows of hidden states, however they come, as the arguments of a pipeline."""

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stage_configs.graph import Deadlines
from omnistage.stages.diffusion.request.prompt_embeds import PromptEmbeds, Upstream
from omnistage.stages.messages.edge import EDGE, Rows
from omnistage.stages.messages.edge import Edge as Message
from omnistage.stages.messages.embeds import EmbedsToCome
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.stage import StagePorts

CPU = torch.device("cpu")
FIRST = 34
LENGTHS = {"prompt_embeds": [5, 3], "negative_prompt_embeds": [2]}
TO_COME = EmbedsToCome(FIRST, LENGTHS)


def rows(name: str, row: int) -> torch.Tensor:
    """What one text's rows are: [length, 4]."""
    length = LENGTHS[name][row]
    return torch.arange(length * 4, dtype=torch.float32).view(length, 4) + 100 * row + len(name)


def part(name: str, row: int, start: int, end: int, request_id: str = "a") -> Chunk[Message]:
    tensors = {
        "hidden": Tensor.from_numpy(rows(name, row)[start:end].numpy()),
        "positions": Tensor.from_numpy(np.arange(FIRST + start, FIRST + end, dtype=np.int32)),
    }
    return Chunk(request_id, Rows(name, row), FIRST + start, tensors)


# Not in order, one text in pieces, and one piece twice, as after a preemption.
PARTS = [
    ("prompt_embeds", 1, 0, 3),
    ("negative_prompt_embeds", 0, 0, 2),
    ("prompt_embeds", 0, 2, 5),
    ("prompt_embeds", 0, 2, 5),
    ("prompt_embeds", 0, 0, 2),
]


def check(arguments: Mapping[str, torch.Tensor]) -> None:
    expected = torch.zeros(2, 5, 4)
    expected[0], expected[1, :3] = rows("prompt_embeds", 0), rows("prompt_embeds", 1)
    assert arguments["prompt_embeds"].tolist() == expected.tolist()
    assert arguments["prompt_embeds_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    negative = rows("negative_prompt_embeds", 0)[None]
    assert arguments["negative_prompt_embeds"].tolist() == negative.tolist()
    assert arguments["negative_prompt_embeds_mask"].tolist() == [[1, 1]]


def test_rows_are_put_where_they_belong() -> None:
    embeds = PromptEmbeds(TO_COME)
    for number, piece in enumerate(PARTS):
        assert not embeds.is_complete, number
        embeds.add(part(*piece))
        embeds.add(Chunk("a", Rows(), last=True))  # the end of a text has no rows
    assert embeds.is_complete
    check(embeds.arguments(CPU, torch.float32))


def test_rows_of_bfloat16_keep_their_values() -> None:
    hidden = torch.tensor([[1.5, -2.25]], dtype=torch.bfloat16)
    sent = Tensor("bfloat16", (1, 2), bytearray(hidden.view(torch.uint8).numpy().tobytes()))
    positions = Tensor.from_numpy(np.array([FIRST], np.int32))
    embeds = PromptEmbeds(EmbedsToCome(FIRST, {"prompt_embeds": [1]}))
    tensors = {"hidden": sent, "positions": positions}
    embeds.add(Chunk("a", Rows("prompt_embeds", 0), FIRST, tensors))
    assert torch.equal(embeds.arguments(CPU, torch.bfloat16)["prompt_embeds"][0], hidden)
    assert embeds.arguments(CPU, torch.float32)["prompt_embeds"].dtype == torch.float32


class Edge:
    """The rows' channel into a stage, and what the stage holds."""

    def __init__(self, directory: Path) -> None:
        connector = make_connector("shm", directory, {})
        for address in ("encoder.dit.rows", "dit.gateway"):
            connector.create(address)
        self._rows: Sender = connector.sender("encoder.dit.rows")
        self.receiver: Receiver[Message] = connector.receiver("encoder.dit.rows", EDGE)
        self._outputs = connector.sender("dit.gateway")
        ports = StagePorts("dit", "a", {}, {}, self._outputs, source="encoder")
        ports.ledger = str(directory / "dit.held")
        ports.deadlines = Deadlines(first_chunk_s=0.1, next_chunk_s=0.1)
        self._ledger = Ledger(directory / "dit.held")
        self.upstream = Upstream(ports)

    @property
    def num_waiting(self) -> int:
        return self._ledger.read()["late_inputs"]

    def send(self, *chunks: Chunk[Message]) -> None:
        for chunk in chunks:
            self._rows.send(chunk)
            received = self.receiver.receive()
            assert received is not None
            self.upstream.receive(self.receiver, received)

    def close(self) -> None:
        self._rows.close()
        self.receiver.close()
        self._outputs.close()
        self._ledger.close()
        self.upstream.close()


@pytest.fixture
def edge(run_directory: Path) -> Iterator[Edge]:
    directory = run_directory / "edge"
    directory.mkdir()
    edge = Edge(directory)
    yield edge
    edge.close()
    shutil.rmtree(directory)


async def test_a_request_waits_for_all_its_rows_and_holds_nothing_then(edge: Edge) -> None:
    waiting = asyncio.create_task(edge.upstream.all_of("a", TO_COME))
    edge.send(part(*PARTS[0]))  # the task has not begun yet
    await asyncio.sleep(0)
    assert edge.num_waiting == 1
    edge.send(*(part(*piece) for piece in PARTS[1:]))
    check((await waiting).arguments(CPU, torch.float32))
    assert (edge.num_waiting, edge.receiver.num_requests) == (0, 0)


async def test_rows_that_do_not_come_are_the_edges_failure(edge: Edge) -> None:
    waiting = asyncio.create_task(edge.upstream.all_of("a", TO_COME))
    edge.send(part(*PARTS[0]))
    with pytest.raises(RequestError, match="Edge encoder -> dit") as failure:
        await waiting
    assert failure.value.status == 504
    assert edge.num_waiting == 0


async def test_a_cancel_leaves_nothing_and_late_rows_hold_no_credit(edge: Edge) -> None:
    waiting = asyncio.create_task(edge.upstream.all_of("a", TO_COME))
    await asyncio.sleep(0)
    edge.send(part(*PARTS[0]))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    edge.send(part(*PARTS[1]))
    await asyncio.sleep(0)
    assert (edge.num_waiting, edge.receiver.num_requests) == (0, 0)

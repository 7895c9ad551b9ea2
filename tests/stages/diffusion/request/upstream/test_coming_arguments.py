"""Rows and ids from upstream, however they come, as the arguments of a pipeline."""

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
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.kinds import GivenArguments
from omnistage.stages.diffusion.request.upstream.coming_arguments import (
    ComingArguments,
    Upstream,
    blank_arguments,
    placed,
)
from omnistage.stages.messages.arguments import ArgumentsToCome, RowsToCome, Value
from omnistage.stages.messages.edge import EDGE, Ids, Rows
from omnistage.stages.messages.edge import Edge as Message
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.stage import StagePorts

CPU = torch.device("cpu")
FIRST = 34
LENGTHS = {"prompt_embeds": [5, 3], "negative_prompt_embeds": [2]}
TO_COME = ArgumentsToCome(
    {name: RowsToCome(FIRST, lengths, mask=f"{name}_mask") for name, lengths in LENGTHS.items()}
)


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
    coming = ComingArguments(TO_COME)
    for number, piece in enumerate(PARTS):
        assert not coming.is_complete, number
        coming.add(part(*piece))
        coming.add(Chunk("a", Rows(), last=True))  # the end of a text has no rows
    assert coming.is_complete
    check(coming.arguments(CPU, torch.float32))


def test_rows_of_bfloat16_keep_their_values() -> None:
    hidden = torch.tensor([[1.5, -2.25]], dtype=torch.bfloat16)
    sent = Tensor("bfloat16", (1, 2), bytearray(hidden.view(torch.uint8).numpy().tobytes()))
    positions = Tensor.from_numpy(np.array([FIRST], np.int32))
    coming = ComingArguments(ArgumentsToCome({"prompt_embeds": RowsToCome(FIRST, [1])}))
    tensors = {"hidden": sent, "positions": positions}
    coming.add(Chunk("a", Rows("prompt_embeds", 0), FIRST, tensors))
    assert torch.equal(coming.arguments(CPU, torch.bfloat16)["prompt_embeds"][0], hidden)
    assert coming.arguments(CPU, torch.float32)["prompt_embeds"].dtype == torch.float32


IDS = np.arange(12, dtype=np.int64) + (1 << 40)


def ids_of(argument: str) -> Chunk[Message]:
    return Chunk("a", Ids(argument), 0, {"ids": Tensor.from_numpy(IDS)}, last=True)


@pytest.mark.parametrize("mask", ["", "prompt_attention_mask"])
def test_arguments_have_the_names_types_and_shapes_that_were_announced(mask: str) -> None:
    values: dict[str, Value] = {"height": 64, "guidance_scale": 1.5, "is_on": True}
    rows = {"prompt_embeds": RowsToCome(FIRST, [5, 3], mask=mask)}
    coming = ComingArguments(ArgumentsToCome(rows, {"prior_token_ids": [1, 3, 4]}, values))
    coming.add(part("prompt_embeds", 0, 0, 5))
    coming.add(part("prompt_embeds", 1, 0, 3))
    assert not coming.is_complete
    coming.add(ids_of("prior_token_ids"))
    assert coming.is_complete
    arguments = coming.arguments(CPU, torch.bfloat16)
    dtypes = {name: one.dtype for name, one in arguments.items() if torch.is_tensor(one)}
    masks = {mask: torch.int64} if mask else {}
    assert dtypes == {"prompt_embeds": torch.bfloat16, "prior_token_ids": torch.int64, **masks}
    assert arguments["prior_token_ids"].tolist() == IDS.reshape(1, 3, 4).tolist()
    assert {name: arguments[name] for name in values} == values
    assert arguments.keys() == {*dtypes, *values}


def test_arguments_that_are_all_known_wait_for_nothing() -> None:
    assert ComingArguments(ArgumentsToCome(values={"height": 64})).is_complete


class TakesIds:
    """A pipeline that is called with ids."""

    def __call__(self, prompt: str, ids: torch.Tensor, height: int, embeds: torch.Tensor) -> None:
        """Make nothing."""


def blank(model: str, call: Mapping[str, object]) -> dict[str, object]:
    return {
        "prompt": model,
        "ids": np.zeros(2, np.int64),
        "embeds": np.zeros(2, np.float32),
        "height": call["height"],
    }


def blank_unknown(model: str, call: Mapping[str, object]) -> dict[str, object]:
    return {"prior": 1}


def given(name: str) -> GivenArguments:
    return GivenArguments((), f"{__name__}:{name}")


def test_stand_ins_of_a_warm_up_are_made_by_the_kind_upstream() -> None:
    made = blank_arguments(given("blank"), TakesIds(), "folder", {"height": 32})
    made = placed(made, CPU, torch.bfloat16)
    assert (made["prompt"], made["height"]) == ("folder", 32)
    assert (made["ids"].dtype, made["embeds"].dtype) == (torch.int64, torch.bfloat16)


def test_a_pipeline_that_does_not_take_what_upstream_gives_is_refused() -> None:
    with pytest.raises(ValueError, match="gives prior, which TakesIds does not take"):
        blank_arguments(given("blank_unknown"), TakesIds(), "folder", {})


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
        ports.source_kind = "qwen_image.text_encoder"
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
    waiting = asyncio.create_task(edge.upstream.all_of("a", TO_COME, CPU))
    edge.send(part(*PARTS[0]))  # the task has not begun yet
    await asyncio.sleep(0)
    assert edge.num_waiting == 1
    edge.send(*(part(*piece) for piece in PARTS[1:]))
    check((await waiting).arguments(CPU, torch.float32))
    assert (edge.num_waiting, edge.receiver.num_requests) == (0, 0)


async def test_rows_that_do_not_come_are_the_edges_failure(edge: Edge) -> None:
    waiting = asyncio.create_task(edge.upstream.all_of("a", TO_COME, CPU))
    edge.send(part(*PARTS[0]))
    with pytest.raises(RequestError, match="Edge encoder -> dit") as failure:
        await waiting
    assert failure.value.status == 504
    assert edge.num_waiting == 0


async def test_a_cancel_leaves_nothing_and_late_rows_hold_no_credit(edge: Edge) -> None:
    waiting = asyncio.create_task(edge.upstream.all_of("a", TO_COME, CPU))
    await asyncio.sleep(0)
    edge.send(part(*PARTS[0]))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    edge.send(part(*PARTS[1]))
    await asyncio.sleep(0)
    assert (edge.num_waiting, edge.receiver.num_requests) == (0, 0)


@pytest.mark.parametrize(
    ("spans", "kept"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        ([(0, 2)], [2, 3, 4, 5]),
        ([(1, 3), (5, 6)], [0, 3, 4]),
        ([(0, 1), (2, 3), (4, 5)], [1, 3, 5]),
    ],
)
def test_rows_that_are_left_out_have_no_place_in_the_argument(
    spans: list[tuple[int, int]], kept: list[int]
) -> None:
    rows_ = torch.arange(12, dtype=torch.float32).view(6, 2)
    about = RowsToCome(FIRST, [len(kept)], left_out=[[(FIRST + a, FIRST + b) for a, b in spans]])
    coming = ComingArguments(ArgumentsToCome({"prompt_embeds": about}))
    for start, stop in ((3, 6), (0, 4)):
        tensors = {
            "hidden": Tensor.from_numpy(rows_[start:stop].numpy()),
            "positions": Tensor.from_numpy(np.arange(FIRST + start, FIRST + stop, dtype=np.int32)),
        }
        assert not coming.is_complete
        coming.add(Chunk("a", Rows("prompt_embeds", 0), start, tensors))
    assert coming.is_complete
    made = coming.arguments(CPU, torch.float32)["prompt_embeds"]
    assert torch.equal(made, rows_[None, kept])

"""Orders and replies by a pipe, and what a rank makes of an order."""

from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from omnistage.stages.diffusion.ranks.orders import ORDERS, REPLIES, RankOrder, Reply, tell
from omnistage.stages.diffusion.ranks.process import (
    execute,
)
from omnistage.stages.diffusion.ranks.wire import pack, unpack

HOST = torch.device("cpu")
HEADER = pack(["as it was", torch.ones(2, 3), torch.zeros(0)])[0]


class Worker:
    """Stands for a RankWorker."""

    def double(self, number: int) -> int:
        """A result."""
        return 2 * number

    def overflow(self) -> None:
        """No memory."""
        raise torch.OutOfMemoryError("full")

    def misread(self) -> None:
        """The name of its file is no UTF-8."""
        raise OSError("no \udcff here")

    def unsendable(self) -> Any:
        """What stays on its rank."""
        return {"threads": [set()]}


def executed(method: str, *args: Any, wants_reply: bool = True) -> Reply:
    """The reply to an order, as it arrives."""
    arguments = pack(args)[0]
    worker: Any = Worker()
    reply, flat = execute(worker, RankOrder(3, method, arguments, wants_reply), arguments, HOST)
    assert flat is None
    ours, theirs = Pipe()
    with ours, theirs:
        tell(theirs, reply)
        return REPLIES.decode(ours.recv_bytes())


@pytest.mark.parametrize(
    "order", [RankOrder(4), RankOrder(5, "run", HEADER), RankOrder(6, "wake", HEADER, False)]
)
def test_an_order_arrives_as_it_was_told(order: RankOrder) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        tell(ours, order)
        assert ORDERS.decode(theirs.recv_bytes()) == order


@pytest.mark.parametrize(
    "reply", [Reply(0), Reply(5, HEADER), Reply(6, None, "ValueError: no", True)]
)
def test_a_reply_arrives_as_it_was_told(reply: Reply) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        tell(theirs, reply)
        assert REPLIES.decode(ours.recv_bytes()) == reply


@pytest.mark.parametrize(("wants_reply", "expected"), [(True, 14), (False, None)])
def test_a_result_is_told_if_it_is_wanted(wants_reply: bool, expected: int | None) -> None:
    reply = executed("double", 7, wants_reply=wants_reply)
    assert reply.number == 3
    assert reply.result is not None
    assert unpack(reply.result, []) == expected


def test_want_of_memory_is_told_apart_from_other_errors() -> None:
    assert executed("overflow") == Reply(3, None, "OutOfMemoryError: full", True)
    reply = executed("double")
    assert reply.error.startswith("TypeError: ")
    assert not reply.is_out_of_memory


def test_an_error_whose_text_is_no_utf_8_is_told() -> None:
    assert executed("misread") == Reply(3, error="OSError: no \\udcff here")


def test_a_result_that_cannot_be_sent_is_an_error_with_its_place() -> None:
    says = "NotSendable: result.threads[0]: a set cannot be sent to another rank"
    assert executed("unsendable") == Reply(3, error=says)
    assert executed("unsendable", wants_reply=False).error == ""

"""Defines the messages between rank 0 and the other ranks, which go by pipes."""

from collections.abc import Mapping
from multiprocessing.connection import Connection

import msgspec

from omnistage.stages.diffusion.ranks.wire import Header

Call = tuple[tuple[object, ...], Mapping[str, object]]  # arguments as they are given


class RankOrder(msgspec.Struct, frozen=True):
    """An order of rank 0: a method of RankWorker and its arguments. Without a method: end."""

    number: int
    method: str = ""
    arguments: Header | None = None
    wants_reply: bool = True


class Reply(msgspec.Struct, frozen=True):
    """The answer to an order; its tensors follow by the group."""

    number: int
    result: Header | None = None
    error: str = ""
    is_out_of_memory: bool = False


ORDERS = msgspec.msgpack.Decoder(RankOrder)
REPLIES = msgspec.msgpack.Decoder(Reply)


def tell(pipe: Connection, message: RankOrder | Reply) -> None:
    """Send it by a pipe. Raises OSError if nobody is there."""
    pipe.send_bytes(msgspec.msgpack.encode(message))

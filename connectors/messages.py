"""The types of chunks: each channel carries a few kinds of message and refuses all others."""

import operator
from functools import reduce
from typing import Any, ClassVar, Generic

import msgspec
from typing_extensions import TypeVar


class Message(
    msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower, forbid_unknown_fields=True
):
    """The content of a chunk. On the wire it has its class's name, by which a receiver knows it.

    `in_place`: the chunk's tensors are read in the channel's memory, which is the chunk's until the
    receiver is called again; those of others get memory of their own.
    """

    in_place: ClassVar[bool] = False


M = TypeVar("M", bound=Message, default=Message)
M_co = TypeVar("M_co", bound=Message, default=Message, covariant=True)

# A chunk without its tensors' bytes: request, message, index, last, and of each tensor its name,
# dtype, shape and number of bytes.
Header = tuple[str, M, int, bool, list[tuple[str, str, tuple[int, ...], int]]]

_encoder = msgspec.msgpack.Encoder()


class UnknownMessage(Exception):
    """A chunk says what its channel does not carry."""


class Messages(Generic[M]):
    """The kinds of message that a channel carries."""

    def __init__(self, *kinds: type[M]) -> None:
        union: Any = reduce(operator.or_, kinds)
        header: Any = Header[union]  # type: ignore[misc]
        self._decoder: msgspec.msgpack.Decoder[Header[M]] = msgspec.msgpack.Decoder(header)

    def decode(self, header: bytes) -> Header[M]:
        """A chunk's header; raises UnknownMessage, which names the request and the message."""
        try:
            return self._decoder.decode(header)
        except msgspec.ValidationError as error:
            request_id, message, *_ = msgspec.msgpack.decode(header)
            said = message.get("kind") if isinstance(message, dict) else type(message).__name__
            raise UnknownMessage(f"request {request_id}, message {said!r}: {error}") from error


def encode_header(header: Header[Message]) -> bytes:
    """Encodes the header for the wire."""
    return _encoder.encode(header)

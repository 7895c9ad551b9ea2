"""Messages between stages along an edge."""

from typing import ClassVar, TypeVar

import msgspec

from omnistage.connectors.messages import Message, Messages
from omnistage.stages.messages.to_stage import Request

About = TypeVar("About", bound=msgspec.Struct)

NOTHING = msgspec.Raw(b"\xc0")  # nil


class Open(Message, frozen=True):
    """A request is on its way; what the target must know beforehand may travel as tensors.

    `about`: a struct that both ends of the edge know, as `described` makes it.
    """

    request: Request
    about: msgspec.Raw = NOTHING

    def read(self, kind: type[About]) -> About:
        """Returns what the source said; raises msgspec.ValidationError if it is of another kind."""
        return msgspec.msgpack.decode(self.about, type=kind)


class NothingToSay(Message, frozen=True):
    """The answer is complete, and nothing of it is for the target, or no more than has come."""


class Waits(Message, frozen=True):
    """The source waits for its own client: what is late is not overdue."""


class StageTokens(Message, frozen=True):
    """Tensor `tokens`, int32 [n], or others [n] or [n, width] that the target's columns take.

    The chunk's index counts the lines before it.
    """


class ReleasedWords(Message, frozen=True):
    """Words as they are released to the client; those of a request follow each other."""

    text: str


class Rows(Message, frozen=True):
    """Hidden states: tensors `hidden` [n, size] and `positions` int32 [n].

    `text` and `row` say which of a request's texts they are of, where there are several.
    """

    text: str = ""
    row: int = 0


class Ids(Message, frozen=True):
    """An argument of a pipeline that is ids: tensor `ids` int64, whole."""

    argument: str


class KeysAndValues(Message, frozen=True):
    """Cached keys and values of a request's text `number`, of an argument of a pipeline's call.

    Tensor `kv` [layers, 2, n, kv heads, head size]: keys, then values, of n tokens; the chunk's
    index is the position of the first.
    """

    in_place: ClassVar[bool] = True
    argument: str
    number: int = 0


class RowsReleased(Message, frozen=True):
    """The number of a request's leading rows that are for the target; no more after the last."""

    num_rows: int


class Codes(Message, frozen=True):
    """Codec frames: tensors `codes` int32 [n, codebooks] and `positions` int32 [n]."""


class Lead(msgspec.Struct, frozen=True):
    """The reference of an `Open` to a decoder whose frames go ahead of a request's own.

    They are tensor `lead` of that chunk, [num_frames, …]. Decoding begins with them, and what they
    sound like is not heard: the request's own sound then goes on from theirs without a seam.
    """

    num_frames: int


Edge = (
    Open
    | NothingToSay
    | Waits
    | ReleasedWords
    | StageTokens
    | Rows
    | Ids
    | KeysAndValues
    | RowsReleased
    | Codes
)
EDGE: Messages[Edge] = Messages(
    Open,
    NothingToSay,
    Waits,
    ReleasedWords,
    StageTokens,
    Rows,
    Ids,
    KeysAndValues,
    RowsReleased,
    Codes,
)


def described(about: msgspec.Struct) -> msgspec.Raw:
    """A struct as it travels in `Open`."""
    return msgspec.Raw(msgspec.msgpack.encode(about))

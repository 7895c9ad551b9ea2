"""Messages of the gateway to a stage's process."""

from typing import Literal

import msgspec

from omnistage.connectors.messages import Message, Messages
from omnistage.stage_configs.json_types import Json
from omnistage.stages.messages.body import AnyBody, Draw, GivenMedium, WithFields

Parameter = int | float | bool
MediumKind = Literal["sound", "frames", "file"]


class Request(Message, frozen=True):
    """A request for the entry stage; its images and masks travel as tensors.

    `body`: what the entry stage is to do; None where a stage upstream has done it. `outputs`: which
    of the graph's outputs it wants. `path`: the stages that it goes through; an edge between two of
    them is live. `image`: the image that a stage further on makes of what the entry says, but for
    its prompt. `stage_params`: sampling of other stages than the entry. `traceparent`: the
    request's span, where engines are to export theirs below it. `keeps_rows`: what its spoken
    successors would export of its prompt is kept beside the prefix cache, and sent to nobody.
    """

    body: AnyBody | None
    outputs: list[str]
    path: list[str] = msgspec.field(default_factory=list)
    image: Draw | None = None
    speaker: str | None = None
    stage_params: dict[str, dict[str, Parameter]] = msgspec.field(default_factory=dict)
    seed: int | None = None
    return_codes: bool = False
    traceparent: str | None = None
    keeps_rows: bool = False

    @property
    def fields(self) -> Json:
        """The fields of its body that its stage's library reads; none, where it has no such."""
        return self.body.fields if isinstance(self.body, WithFields) else {}

    @property
    def given_media(self) -> list[GivenMedium]:
        """The media of its body that a pipeline takes."""
        return self.body.media if isinstance(self.body, Draw) else []

    def with_body(self, body: AnyBody | None) -> "Request":
        """Returns the same request with another body, or with none."""
        return msgspec.structs.replace(self, body=body)


class MediumPiece(Message, frozen=True):
    """A piece of a request's medium, before the request: tensor `data`, [n] of what follows.

    `medium`: float32 samples of a `sound`; pixels of `frames`, uint8; or a `file` as it came. The
    request names it by `name` as its URL. `about` is in the first piece: of a sound `rate_hz`, 0 if
    the stage has none of its own; of frames the `shape` of all, [frames, height, width, 3], and the
    `metadata` of their video, as vLLM and transformers name them.
    """

    name: str
    medium: MediumKind
    about: Json | None = None


class MoreText(Message, frozen=True):
    """The next piece of a request's text; the chunk that is its last ends the text."""

    text: str


class Cancel(Message, frozen=True):
    """Nobody waits for the request any more."""


class Stop(Message, frozen=True):
    """End the process."""


class Command(Message, frozen=True):
    """Change the running stage; one `Answer` comes back under the same id."""

    command: str
    arguments: Json


ToStage = MediumPiece | Request | MoreText | Cancel | Stop | Command
TO_STAGE: Messages[ToStage] = Messages(MediumPiece, Request, MoreText, Cancel, Stop, Command)

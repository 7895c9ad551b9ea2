"""Messages of `omnistage verify` to the process of a reference implementation, and its reply.

Both are files of MessagePack in a folder.
"""

from enum import StrEnum

import msgspec

from omnistage.stage_configs.json_types import Json

JOB, OUTCOME = "job.msgpack", "outcome.msgpack"  # the files' names


class Task(StrEnum):
    """The way in which a question is asked."""

    CHAT = "chat"  # with text as its answer, or text and speech
    SPEECH = "speech"  # of a given text
    IMAGE = "image"


class AskedQuestion(msgspec.Struct):
    """A question, and what the server chose for its answer.

    `fields`: of the request, as the server got them. `tokens`: of the text [n]. `frames`: codec
    frames [frames, codebooks]. `has_ended`: the speech ended by itself, not at its limit.
    """

    task: Task
    fields: Json
    voice: str = ""
    tokens: list[int] = []
    frames: list[list[int]] = []
    has_ended: bool = False


class Choices(msgspec.Struct):
    """The reference's judgement of choices that were made for it, each given those before it.

    `best`: the likeliest one. `gaps`: by how many nats the one that was made is less likely.
    `logprobs`: of the one that was made.
    """

    best: list[int] = []
    gaps: list[float] = []
    logprobs: list[float] = []


class Found(msgspec.Struct):
    """The reference's side of one question; `codes` has those of a frame one after another.

    `samples`: float32 from -1 to 1. `pixels`: uint8 [height, width, 3], of all images.
    """

    tokens: Choices = msgspec.field(default_factory=Choices)
    codes: Choices = msgspec.field(default_factory=Choices)
    samples: bytes = b""
    pixels: list[bytes] = []


class ReferenceJob(msgspec.Struct):
    """All questions for one reference: `path` is its function, module:name.

    `dtype`: a name of torch's, or auto for the checkpoint's own.
    """

    path: str
    model: str
    dtype: str
    asked: list[AskedQuestion]


class Findings(msgspec.Struct):
    """The findings in the order of the questions, and how they were computed."""

    found: list[Found]
    dtype: str
    device: str
    versions: dict[str, str]

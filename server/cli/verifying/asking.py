"""Asks the server, and keeps what it chose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from omnistage.server.cli.verifying.questions import MAX_FRAMES, Question
from omnistage.stage_configs.json_types import Json
from omnistage.stages.messages.to_reference import AskedQuestion, Task

if TYPE_CHECKING:
    from omnistage.server.offline import Answer
    from omnistage.server.offline.omni import Omni


@dataclass(frozen=True, slots=True)
class Answered:
    """The server's side of one question, or why it has none.

    `logprobs`: of the text's tokens, where they were asked for. `samples`: from -1 to 1.
    `pixels`: of each image [height, width, 3].
    """

    name: str
    asked: AskedQuestion | None = None
    logprobs: list[float] = field(default_factory=list)
    samples: npt.NDArray[np.float32] | None = None
    pixels: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    problem: str = ""


def answer_all(omni: "Omni", questions: Sequence[Question]) -> list[Answered]:
    """Returns the answers to all questions, asked one after another."""
    return [_answered(omni, question) for question in questions]


def _answered(omni: "Omni", question: Question) -> Answered:
    from omnistage.server.offline.errors import OmniError

    problem = ""
    for way in ({}, *question.ways):
        try:
            return _asked(omni, question, {**question.fields, **way})
        except OmniError as error:
            problem = problem or str(error)
    return Answered(question.name, problem=problem)


def _asked(omni: "Omni", question: Question, fields: Json) -> Answered:
    if question.task is Task.IMAGE:
        answer = omni.images(**fields)
        pixels = [np.asarray(image.convert("RGB")) for image in answer.images]
        return Answered(question.name, AskedQuestion(question.task, fields), pixels=pixels)
    if question.task is Task.SPEECH:
        if omni.voices:
            fields |= {"voice": omni.voices[0]}
        answer = omni.speech(fields.pop("input"), **fields)
        fields |= {"input": question.fields["input"]}
        return Answered(
            question.name, AskedQuestion(question.task, fields), samples=_samples(answer)
        )
    voice = omni.voices[0] if question.is_spoken else ""
    answer = omni.chat(**fields, voice=voice or None)
    choice = answer.choices[0]
    frames = [list(frame) for frame in answer.codes]
    has_ended = len(frames) < MAX_FRAMES
    asked = AskedQuestion(question.task, fields, voice, list(choice.token_ids), frames, has_ended)
    logprobs = [one["logprob"] for one in (choice.logprobs or {}).get("content", ())]
    samples = _samples(answer) if question.is_spoken else None
    return Answered(question.name, asked, logprobs, samples)


def _samples(answer: "Answer") -> npt.NDArray[np.float32] | None:
    if answer.audio is None:
        return None
    return answer.audio.samples.astype(np.float32) / np.float32(32767)

"""Judges what the server answered by what the reference says of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from omnistage.server.cli.verifying.asking import Answered
from omnistage.stages.messages.to_reference import Choices, Found


class Verdict(StrEnum):
    """The verdict on an answer, or on a part of one."""

    EQUAL = "equal"
    TIED = "equal but for ties"
    DIFFERENT = "different"
    FAILED = "not answered"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest differences that rounding may make.

    `gap`: a choice below the likeliest one, and `logprob`: a token's log-probability from the
    server's, in nats. `samples`: of -1 to 1. `pixels`: of 255.
    """

    gap: float
    logprob: float
    samples: float
    pixels: float


TOLERANCES = {"float32": Tolerance(1e-3, 1e-2, 2e-4, 1.0)}
OF_HALVES = Tolerance(0.5, 2.0, 0.1, 32.0)  # bfloat16 and float16


@dataclass(frozen=True, slots=True)
class JudgedPart:
    """The verdict on one part of an answer: its text, codes, samples or pixels.

    `first`: the first place that differs. `largest`: the largest difference, in `unit`.
    """

    what: str
    verdict: Verdict
    first: str = ""
    largest: float = 0.0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A question with the verdicts on its parts, or the reason for which it has no answer."""

    question: str
    parts: list[JudgedPart]
    problem: str = ""


def judged(answered: Answered, found: Found, tolerance: Tolerance) -> Judged:
    """Returns the verdicts on all that an answer has."""
    asked, parts = answered.asked, []
    assert asked is not None
    if asked.tokens:
        parts.append(_chosen("text", asked.tokens, found.tokens, tolerance))
    if answered.logprobs:
        parts.append(_logprobs(answered.logprobs, found.tokens.logprobs, tolerance))
    if asked.frames:
        width = len(asked.frames[0])
        codes = [code for frame in asked.frames for code in frame]
        parts.append(_chosen("codes", codes, found.codes, tolerance, width, asked.has_ended))
    if answered.samples is not None or found.samples:
        expected = np.frombuffer(found.samples, np.float32)
        parts.append(_samples(answered.samples, expected, tolerance.samples))
    if answered.pixels or found.pixels:
        parts.append(_pixels(answered.pixels, found.pixels, tolerance.pixels))
    empty = "" if parts else "the answer is empty"
    return Judged(answered.name, parts, empty)


def _chosen(
    what: str,
    chosen: Sequence[int],
    found: Choices,
    tolerance: Tolerance,
    width: int = 0,
    has_ended: bool = False,
) -> JudgedPart:
    """Judges tokens, or the codes of frames of `width` and perhaps the end behind them."""
    gaps = np.array(found.gaps)
    if len(gaps) != len(chosen) + has_ended:
        first = f"{len(chosen)} {what}; the reference ends after {len(gaps)}"
        return JudgedPart(what, Verdict.DIFFERENT, first)
    is_wrong, is_other = ~(gaps <= tolerance.gap), gaps > 0
    places = np.flatnonzero(is_wrong if is_wrong.any() else is_other)
    verdict = Verdict.TIED if is_other.any() else Verdict.EQUAL
    verdict = Verdict.DIFFERENT if is_wrong.any() else verdict
    first = ""
    if len(places):
        n = int(places[0])
        ours = str(chosen[n]) if n < len(chosen) else "the end"
        place = f"frame {n // width}, codebook {n % width}" if width else f"token {n}"
        first = f"{place}: {ours}; the reference's is {found.best[n]}, {gaps[n]:.3g} nats likelier"
    return JudgedPart(what, verdict, first, float(gaps.max(initial=0)), "nats")


def _logprobs(ours: Sequence[float], theirs: Sequence[float], tolerance: Tolerance) -> JudgedPart:
    """Judges the log-probabilities of tokens that both have."""
    num = min(len(ours), len(theirs))
    apart = np.abs(np.array(ours[:num]) - np.array(theirs[:num]))
    far = np.flatnonzero(~(apart <= tolerance.logprob))
    verdict = Verdict.DIFFERENT if len(far) else Verdict.EQUAL
    first = f"token {far[0]}: {ours[far[0]]:.4g}, {theirs[far[0]]:.4g}" if len(far) else ""
    return JudgedPart("log-probabilities", verdict, first, float(apart.max(initial=0)), "nats")


def _samples(
    ours: npt.NDArray[np.float32] | None, theirs: npt.NDArray[np.float32], most: float
) -> JudgedPart:
    heard = np.zeros(0, np.float32) if ours is None else ours
    num = min(len(heard), len(theirs))
    apart = np.abs(heard[:num] - theirs[:num].clip(-1, 1))
    far = np.flatnonzero(~(apart <= most))
    first = f"sample {far[0]}: {heard[far[0]]:.4f}, {theirs[far[0]]:.4f}" if len(far) else ""
    if not first and len(heard) != len(theirs):
        first = f"{len(heard)} samples; the reference has {len(theirs)}"
    verdict = Verdict.DIFFERENT if first else Verdict.EQUAL
    return JudgedPart("samples", verdict, first, float(apart.max(initial=0)), "of 1")


def _pixels(
    ours: Sequence[npt.NDArray[np.uint8]], theirs: Sequence[bytes], most: float
) -> JudgedPart:
    if len(ours) != len(theirs) or any(
        one.nbytes != len(other) for one, other in zip(ours, theirs, strict=False)
    ):
        return JudgedPart("pixels", Verdict.DIFFERENT, "other images, or of other sizes")
    largest, first = 0, ""
    for number, (image, data) in enumerate(zip(ours, theirs, strict=True)):
        expected = np.frombuffer(data, np.uint8).reshape(image.shape)
        apart = np.abs(image.astype(np.int16) - expected)
        largest = max(largest, int(apart.max()))
        far = np.argwhere(apart > most)
        if len(far) and not first:
            y, x, channel = map(int, far[0])
            levels = f"{image[y, x, channel]}, {expected[y, x, channel]}"
            first = f"image {number}, x {x}, y {y}, channel {channel}: {levels}"
    return JudgedPart(
        "pixels", Verdict.DIFFERENT if first else Verdict.EQUAL, first, largest, "of 255"
    )

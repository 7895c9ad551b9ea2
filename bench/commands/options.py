"""From what a person typed to what is run; mistakes are ValueErrors that name the option."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from omnistage.bench.load import ClosedLoop, Load, OpenLoop

T = TypeVar("T", int, float)

MODALITIES = ("text", "text,audio", "audio", "text,image", "image")
WARMUP_ROUNDS = 2
REQUEST_ROUNDS = 4
MIN_REQUESTS = 16
OPEN_REQUESTS = 64
OPEN_WARMUPS = 2


def make_loads(
    concurrency: str | None,
    rate: str | None,
    requests: str | None,
    warmups: str | None,
    seed: int,
    min_requests: int = MIN_REQUESTS,
) -> tuple[Load, ...]:
    """One load a level; without `concurrency` and `rate` a single stream.

    A closed loop has 4 requests a stream and at least `min_requests`, unless `requests` says.
    """
    if concurrency is not None and rate is not None:
        raise ValueError("--concurrency and --rate exclude each other")
    if rate is not None:
        rates = numbers("--rate", rate, float)
        counts = per_level("--requests", requests, [OPEN_REQUESTS] * len(rates))
        warm = per_level("--warmups", warmups, [OPEN_WARMUPS] * len(rates), least=0)
        each = zip(rates, counts, warm, strict=True)
        return tuple(OpenLoop(one, count, first, seed) for one, count, first in each)
    streams = numbers("--concurrency", concurrency or "1", int)
    usual = [max(min_requests, REQUEST_ROUNDS * one) for one in streams]
    counts = per_level("--requests", requests, usual)
    warm = per_level("--warmups", warmups, [WARMUP_ROUNDS * one for one in streams], least=0)
    for one, count in zip(streams, counts, strict=True):
        if count < one:
            raise ValueError(f"--requests {count} cannot keep {one} streams busy")
    return tuple(ClosedLoop(*each) for each in zip(streams, counts, warm, strict=True))


def numbers(option: str, text: str, kind: type[T], least: float | None = None) -> list[T]:
    """Numbers by commas, positive ones unless `least` says otherwise."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        word = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{option} takes {word} by commas, not {text!r}") from None
    for number in found:
        if not (number > 0 if least is None else number >= least) or number == float("inf"):
            raise ValueError(f"{option} {number} is out of range")
    return found


def per_level(
    option: str, text: str | None, usual: Sequence[int], least: float | None = None
) -> Sequence[int]:
    """One number for each level: given for all, given for each, or the usual ones."""
    if text is None:
        return usual
    found = numbers(option, text, int, least)
    if len(found) == 1:
        return found * len(usual)
    if len(found) != len(usual):
        raise ValueError(f"{option} has {len(found)} numbers for {len(usual)} levels")
    return found


def read_object(option: str, text: str) -> dict[str, object]:
    """The fields of a JSON object."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{option} is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{option} must be a JSON object, not {text[:40]!r}")
    return fields


def read_modalities(text: str, frames: int | None) -> tuple[str, ...]:
    """Returns what an answer is made of; `frames` are frames of sound."""
    if text not in MODALITIES:
        raise ValueError(f"--modalities {text!r} is unknown; allowed: {' | '.join(MODALITIES)}")
    if frames is not None and "audio" not in text:
        raise ValueError("--frames needs --modalities text,audio")
    return tuple(text.split(","))


def check_place(option: str, path: Path | None, suffix: str) -> None:
    """Refuse a file that could not be written when the run is over."""
    if path is None:
        return
    if path.name == suffix or not path.name.endswith(suffix):
        raise ValueError(f"{option} writes {suffix} files, not {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: there is no folder {str(path.parent)!r}")


def command_line(arguments: Sequence[str], api_key: str | None) -> str:
    """The command as it can be repeated, without the key."""
    shown = [Path(arguments[0]).name, *arguments[1:]]
    if api_key:
        shown = [argument.replace(api_key, "KEY") for argument in shown]
    return shlex.join(shown)


def read_words(path: Path) -> tuple[str, ...]:
    """The words of a file, apart by white space; ValueError if there are none."""
    words = tuple(path.read_text("utf-8").split())
    if not words:
        raise ValueError(f"--words: {path} has no words")
    return words

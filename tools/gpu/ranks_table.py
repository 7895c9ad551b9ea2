"""The ways of `make gpu-ranks` to share the work, and what is printed and judged of them."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from omnistage.stage_configs.rules.parallel import num_ranks

Engine = Mapping[str, Any]
Pictures = list[npt.NDArray[np.uint8]]
ONE = "one"
WAYS: Mapping[str, Engine] = {
    ONE: {},
    "guidance": {"guidance_ranks": 2},
    "ulysses": {"parallel": {"ulysses": 2}},
    "ring": {"parallel": {"ring": 2}},
    "tensor": {"parallel": {"tensor": 2}},
    "tiles": {"parallel": {"vae": 2}, "guidance_ranks": 2},
    "shard": {"parallel": {"shard": 2}},
    "ulysses-shard": {"parallel": {"ulysses": 2, "shard": 2}},
    "ulysses-ring": {"parallel": {"ulysses": 2, "ring": 2}},
    "tensor4": {"parallel": {"tensor": 4}},
    "ulysses4": {"parallel": {"ulysses": 4}},
    "guidance-ulysses": {"parallel": {"ulysses": 2}, "guidance_ranks": 2},
}
MORE: Mapping[str, Engine] = {"compile": {"compile": True}, "fp8": {"quantization": "fp8"}}


@dataclass(frozen=True)
class Round:
    """The outcome of one way."""

    way: str
    alone_s: float  # for a picture
    together_s: float  # for all at once
    pictures: Pictures
    peak_mib: int  # the most of a GPU; 0 on a CPU
    # Seconds to the error, and to the next picture; or why there was none.
    failures: Mapping[str, tuple[float, float] | str]


def engine_of(way: str) -> dict[str, Any]:
    """The engine arguments of `WAY[:ATTENTION][+compile][+fp8]`."""
    name, *more = way.split("+")
    name, _, attention = name.partition(":")
    if name not in WAYS or any(one not in MORE for one in more):
        raise SystemExit(
            f"{way!r}: WAY[:ATTENTION], and {', '.join(f'+{one}' for one in MORE)}; WAY is one of "
            f"{', '.join(WAYS)}"
        )
    engine = dict(WAYS[name])
    if attention:
        engine["attention"] = attention
    for one in more:
        engine |= MORE[one]
    return engine


def levels(one: Pictures, other: Pictures) -> float:
    """The largest mean difference of two pictures."""
    pairs = zip(one, other, strict=True)
    return max(float(np.abs(a.astype(int) - b.astype(int)).mean()) for a, b in pairs)


def table_of(rounds: Mapping[str, Round | Exception], at_once: int) -> Table:
    """Returns what is printed."""
    table = Table(
        "way", "GPUs", "s a picture", "faster", f"s for {at_once}", "faster", "GiB", "levels off"
    )
    one = rounds[ONE]
    for way, each in rounds.items():
        num = str(num_ranks(engine_of(way)))
        if isinstance(each, Exception) or isinstance(one, Exception):
            table.add_row(way, num, "failed" if isinstance(each, Exception) else "")
            continue
        table.add_row(
            way,
            num,
            f"{each.alone_s:.2f}",
            f"{one.alone_s / each.alone_s:.2f}",
            f"{each.together_s:.2f}",
            f"{one.together_s / each.together_s:.2f}",
            f"{each.peak_mib / 1024:.1f}",
            f"{levels(one.pictures, each.pictures):.3f}",
        )
    return table


def line_of(way: str, rounds: Mapping[str, Round | Exception], at_once: int) -> str:
    """Returns what is printed at the end of a way."""
    found, one = rounds[way], rounds[ONE]
    if isinstance(found, Exception):
        *_, last = str(found).strip().splitlines() or [type(found).__name__]
        return f"{way}: failed: {last}"  # of a server's log the last line
    line = f"{way}: {found.alone_s:.2f} s, {at_once} in {found.together_s:.2f} s"
    if not isinstance(one, Exception):
        line += f", {levels(one.pictures, found.pictures):.3f} levels off"
    line += f", of a spread of {np.std(found.pictures[0]):.1f}"
    for how, seconds in found.failures.items():
        if isinstance(seconds, str):
            line += f"; {how}: failed: {seconds}"
        else:
            line += f"; {how}: ended after {seconds[0]:.1f} s, a picture after {seconds[1]:.1f} s"
    return line


def is_right(rounds: Mapping[str, Round | Exception], asked: argparse.Namespace) -> bool:
    """Returns whether all ways work, and their pictures are those of one GPU."""
    found = [each for each in rounds.values() if isinstance(each, Round)]
    heals = all(not isinstance(how, str) for each in found for how in each.failures.values())
    if len(found) < len(rounds) or not heals:
        return False
    worst = max(levels(found[0].pictures, each.pictures) for each in found)
    return asked.load_format == "dummy" or bool(worst <= asked.max_levels)

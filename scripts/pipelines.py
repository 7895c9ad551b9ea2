"""Judges every pipeline class of the installed Diffusers by the rules of the diffusion stage.

python scripts/pipelines.py [--check] [--run [CLASS ...]]

Writes docs/diffusers-pipelines.md: a row for each public class that is not deprecated. Signatures
and annotations are read, no weights. What was measured with tiny models (the last column) is kept
from the page. With --run it is measured again, of these classes or of all that can be built
(`make pipelines`); tests/ must be on the path. With --check the page stays as it is, and the exit
code is 1 if it is not the rules' output.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

warnings.filterwarnings("ignore")
import diffusers  # noqa: E402
from pipeline_classes import pipeline_classes  # noqa: E402
from pipeline_rules import Judgement, listed  # noqa: E402

PAGE = Path(__file__).parent.parent / "docs" / "diffusers-pipelines.md"
COMMAND = "python scripts/pipelines.py"
BY_SIGNATURE = "by signature"
VERDICTS = ("served", "limited", "refused")
HEAD = "| pipeline | makes | today | why, or what is missing | fields | verified |"


def row(judged: Judgement, verified: str) -> str:
    """Return a class's row of the table."""
    why = judged.refusal or "; ".join(judged.limits)
    fields = {} if judged.refusal else judged.endpoints
    reached = "; ".join(f"{path}: {listed(names)}" for path, names in fields.items())
    how = "" if judged.refusal and verified == BY_SIGNATURE else verified
    cells = (f"`{judged.name}`", judged.makes, judged.verdict, why, reached, how)
    return f"| {' | '.join(cells)} |"


def page(verified: Mapping[str, str]) -> str:
    """Return the page; `verified`: the last column, by class."""
    judged = [Judgement(one) for one in pipeline_classes()]
    counts = Counter((_kind(one), one.verdict) for one in judged)
    kinds = sorted({kind for kind, _ in counts})
    totals = [
        f"| {name} | {' | '.join(str(sum(counts[k, v] for k in of)) for v in VERDICTS)} |"
        for name, of in [*((kind, [kind]) for kind in kinds), ("all", kinds)]
    ]
    rows = [row(one, verified.get(one.name, BY_SIGNATURE)) for one in judged]
    return "\n".join([*_intro(len(rows)), *COUNTED, *totals, "", *TABLE, *rows, ""])


def _kind(judged: Judgement) -> str:
    return (
        judged.makes if judged.makes.partition(" ")[0] in ("image", "video", "audio") else "other"
    )


def _intro(num: int) -> list[str]:
    return [
        "# Diffusers' pipelines",
        "",
        f"All {num} public pipeline classes of Diffusers {diffusers.__version__} that are not "
        "deprecated, judged by the rules of the [diffusion stage](diffusion.md).",
        f"The page is the output of `{COMMAND}`; a test compares the two.",
        "",
    ]


COUNTED = ["| makes | served | limited | refused |", "|---|---|---|---|"]
TABLE = [
    "A class that is `served` takes each image, video and sound that its call wants. A `limited` "
    "one answers, and the table names what is missing. For a `refused` one the server does not "
    "start, or no request can be answered.",
    "",
    "The fields are those that are arguments of the class, beside `prompt`, `n`, `size` and "
    "`seed`, which all have. `by signature` means that no rule refuses the class; a tiny "
    "model of a class that `ran`, with random weights, was compared with its bare call. Three "
    "calls of different images, and of prompts of equal length, were made one by one and at once, "
    "below the stage's engine. They are equal if no pixel differs by more than 1 of 255. "
    "`make pipelines` compares them again.",
    "",
    HEAD,
    "|---|---|---|---|---|---|",
]


def recorded(text: str) -> dict[str, str]:
    """Return the last column of a page, by class that ran."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[-1] for cells in lines if cells[-1].startswith("ran: ")}


def measured(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the last column of classes, all of them without names, and print what failed."""
    from support.tiny_pipelines.compare import compare

    for made in pipeline_classes():
        judged = Judgement(made)
        if judged.is_absent or (names and judged.name not in names):
            continue
        try:
            cell = str(compare(made))
        except Exception as error:  # noqa: BLE001 - a class's own, whatever it is
            cell = BY_SIGNATURE
            print(f"{judged.name}: {type(error).__name__}: {error}".partition("\n")[0][:200])
        yield judged.name, cell


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", nargs="*")
    options = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    verified = recorded(old)
    if options.run is not None:
        verified |= measured(options.run)
    new = page(verified)
    if options.check:
        sys.exit(f"{PAGE.name} is old: run {COMMAND}" if new != old else None)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()

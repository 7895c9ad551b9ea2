"""The report of a comparison, as a table and as JSON."""

import platform
from dataclasses import dataclass, field

from rich.table import Table

from omnistage.server.cli.verifying.judge import Judged, Verdict
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.packages import VLLM_PACKAGES, installed

EQUAL, DIFFERENT, NOT_RUN = 0, 1, 2  # exit codes


@dataclass(slots=True)
class Comparison:
    """The verdicts on one model; `references`: the way in which each was computed."""

    model: str
    graph: Json
    questions: list[Judged] = field(default_factory=list)
    references: list[Json] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0: equal, but for ties and rounding. 1: something differs. 2: not all could be asked."""
        verdicts = [part.verdict for one in self.questions for part in one.parts]
        if Verdict.DIFFERENT in verdicts:
            return DIFFERENT
        return NOT_RUN if any(one.problem for one in self.questions) else EQUAL

    def to_json(self) -> Json:
        """Returns it as what `--json` writes."""
        return {
            "model": self.model,
            "exit_code": self.exit_code,
            "versions": {
                "omnistage": installed("omnistage"),
                "vllm": installed(*VLLM_PACKAGES),
                "python": platform.python_version(),
            },
            "references": self.references,
            "questions": [as_json(one) for one in self.questions],
            "graph": self.graph,
        }

    def to_table(self) -> Table:
        """Returns a line for each part of each answer."""
        table = Table("question", "part", "verdict", "largest", "first difference")
        for one in self.questions:
            if one.problem:
                table.add_row(one.question, "", Verdict.FAILED, "", one.problem)
            for part in one.parts:
                largest = f"{part.largest:.2g} {part.unit}"
                table.add_row(one.question, part.what, part.verdict, largest, part.first)
        return table


def as_json(judged: Judged) -> Json:
    """Returns one question with its parts."""
    parts = [
        {
            "part": part.what,
            "verdict": str(part.verdict),
            "first_difference": part.first or None,
            "largest": part.largest,
            "unit": part.unit,
        }
        for part in judged.parts
    ]
    return {"question": judged.question, "problem": judged.problem or None, "parts": parts}

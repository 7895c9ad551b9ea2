"""Metrics, labels, codes and texts of docs/operations.md and docs/troubleshooting.md exist."""

import re
from pathlib import Path

import pytest
from support.repository.metrics_docs import documented

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
METRICS = documented()


def test_every_metric_that_is_named_is_in_the_table() -> None:
    """The alerts' queries are compared with a server's metrics in test_monitoring.py."""
    named = set(re.findall(r"(?<!:)\bomnistage_\w+", OPERATIONS))
    assert len(named) >= 8
    assert {name.removesuffix("_bucket") for name in named} <= METRICS.keys()


@pytest.mark.parametrize("page", [OPERATIONS, TROUBLE], ids=["operations", "troubleshooting"])
def test_every_status_has_the_code_of_the_table_of_errors(page: str) -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", API, re.MULTILINE))
    named = re.findall(r"\b(\d{3}) `(\w+)`", page)
    assert len(named) >= 2
    for status, code in named:
        assert table[code] == status, code


def test_messages_are_those_of_the_code() -> None:
    """Up to the first place where something is filled in."""
    code = "".join(
        path.read_text()
        for folder in ("server", "stages", "stage_configs")
        for path in (ROOT / folder).rglob("*.py")
    )
    parts = ["does not fit on", "wants GPU", "; this machine has", "cannot listen on"]
    parts += [
        "there is no folder",
        "unknown key",
        "did you mean",
    ]
    for part in parts:
        assert part in TROUBLE
        assert part in code, part

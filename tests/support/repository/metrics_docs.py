"""The metrics that docs/metrics.md lists, and those of a page."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from omnistage.stages.messages.families import families_of, page

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"

# By its name: its type and its labels.
Listed = Mapping[str, tuple[str, Collection[str]]]


def sections() -> list[str]:
    """The headings of the tables."""
    return re.findall(r"^## (.*)$", DOCS.read_text(), re.MULTILINE)


def documented(*headings: str) -> Listed:
    """What these sections list; without any, what all do."""
    text = "\n" + DOCS.read_text()
    listed = {}
    for heading in headings or sections():
        assert f"\n## {heading}\n" in text, heading
        for line in text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines():
            if line.startswith("| `"):
                names, kind, labels, about = (cell.strip() for cell in line.strip("|").split("|"))
                assert about, names
                for name in re.findall(r"`([\w:]+)`", names):
                    assert name not in listed, f"{name} is listed twice"
                    listed[name] = kind, set(re.findall(r"`(\w+)`", labels))
    return listed


def families_in(text: str) -> list[Metric]:
    """A page, read as Prometheus does."""
    return list(text_string_to_metric_families(text))


def exposed(text: str) -> Listed:
    """What is on pages; a metric without a sample has no labels."""
    found: dict[str, tuple[str, set[str]]] = {}
    for family in families_in(text):
        assert family.documentation, family.name
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for one in family.samples for label in one.labels} - {"le"}
        found[name] = family.type, labels | found.get(name, ("", set()))[1]
    return found


def rendered(collector: Collector) -> str:
    """The part of the page that a stage's collector makes."""
    return page(families_of(collector, {"stage": "one", "replica": "0"}))

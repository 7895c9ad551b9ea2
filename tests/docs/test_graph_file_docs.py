"""docs/graph-file.md: its graphs can be loaded, and its tables say what the kinds do."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.declared.edge import Edge
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.kinds import Payload

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "graph-file.md").read_text()
GRAPHS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def test_the_drawing_is_the_graph_s() -> None:
    ((path, drawing),) = re.findall(
        r"`omnistage check (\S+) --mermaid` draws that graph:\n\n```mermaid\n(.*?)```",
        TEXT,
        re.DOTALL,
    )
    result = CliRunner().invoke(cli.app, ["check", str(ROOT / path), "--mermaid"])
    assert result.output == drawing


def table(head: str) -> dict[str, list[str]]:
    """The other cells of each row of a table, by its first, and by the first cell of its head."""
    (found,) = re.findall(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]
    return {first.strip("`"): cells for first, *cells in rows}


def test_the_deadlines_are_the_defaults() -> None:
    shown = {name: float(cells[0]) for name, cells in table("deadline").items()}
    assert shown == Deadlines().model_dump()


def kinds_in(cell: str) -> set[str]:
    return set(re.findall(r"`([a-z]\w*(?:\.\w+)?)`", cell))


PAYLOADS = table("payload")


def graphs(folder: Path) -> list[StageGraph]:
    """Those of the page, each from a file."""
    loaded = []
    for number, text in enumerate(GRAPHS):
        path = folder / f"{number}.yaml"
        path.write_text(text)
        loaded.append(load_graph(path))
    return loaded


def test_each_graph_can_be_loaded(tmp_path: Path) -> None:
    first, *_ = graphs(tmp_path)
    assert set(first.outputs) == {"text", "audio", "image"}


def test_each_edge_carries_what_the_table_says_of_its_ends(tmp_path: Path) -> None:
    for graph in graphs(tmp_path):
        for edge in graph.edges:
            source, target = graph.stages[edge.source].kind, graph.stages[edge.target].kind
            said = {
                name
                for name, (_, made, taken) in PAYLOADS.items()
                if source in kinds_in(made) and target in kinds_in(taken)
            }
            assert set(graph.carried(edge)) == said
            assert said


@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_table_of_payloads_names_the_kinds_that_make_and_take_each(payload: str) -> None:
    _, made, taken = PAYLOADS[payload]
    kinds = KINDS.items()
    assert kinds_in(made) == {name for name, kind in kinds if payload in kind.makes}
    assert kinds_in(taken) == {
        name for name, kind in kinds if any(payload in choice for choice in kind.takes)
    }


def test_each_payload_of_a_kind_is_in_the_table() -> None:
    used = {payload for kind in KINDS.values() for payload in kind.makes.union(*kind.takes)}
    assert set(map(Payload, PAYLOADS)) == used


def test_the_table_of_stages_names_each_kind() -> None:
    (said,) = table("key")["kind"]
    assert kinds_in(said) == set(KINDS)


def test_the_table_of_edges_has_each_key() -> None:
    assert table("key of an edge").keys() == Edge.model_fields.keys() - {"source", "target"}


def test_the_outputs_are_those_that_kinds_make() -> None:
    (said,) = re.findall(r"`outputs` names the stage that makes ([^.]*)\.", TEXT)
    assert kinds_in(said) == set().union(*(kind.outputs for kind in KINDS.values()))

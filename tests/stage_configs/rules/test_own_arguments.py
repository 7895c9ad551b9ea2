"""Arguments that a stage sets itself: what may be written, and what is refused."""

from typing import Any

import pytest

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stage_configs.rules.own_arguments import TALKER, Own, own_problem, with_own

OWN = {"cached": Own("why not", False), "interval": Own("of others", 0), "name": Own("it is given")}


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"cached": False},
        {"cached": None},
        {"interval": 0},
        {"name": ""},
        {"name": {}},
        {"a": 1},
    ],
    ids=str,
)
def test_what_is_so_anyway_may_be_written(engine: dict[str, Any]) -> None:
    assert own_problem(OWN, engine) is None
    assert with_own(engine, OWN) == {**engine, "cached": False, "interval": 0}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cached", True, "is set by this stage itself, as false: why not"),
        ("cached", 0, "is set by this stage itself, as false: why not"),  # no switch
        ("interval", 1, "is set by this stage itself, as 0: of others"),
        ("interval", False, "is set by this stage itself, as 0: of others"),
        ("name", "x", "is set by this stage itself: it is given"),
        ("name", [], "is set by this stage itself: it is given"),
    ],
)
def test_anything_else_is_refused_by_its_name(name: str, value: Any, message: str) -> None:
    assert own_problem(OWN, {name: value}) == (message, ("engine", name))
    with pytest.raises(ValueError, match=f"^{name} {message}$"):
        with_own({name: value}, OWN)


def test_all_talkers_set_the_same() -> None:
    talkers = [kind for name, kind in KINDS.items() if name.endswith(".talker")]
    assert len(talkers) >= 3
    assert all(TALKER.items() <= kind.sets.items() for kind in talkers)


@pytest.mark.parametrize("graph", sorted(GRAPHS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_argument_of_our_graphs_is_known(graph: Any) -> None:
    load_graph(graph, "m")


def test_names_are_compared_for_kinds_of_other_engines_too() -> None:
    from omnistage.stage_configs.overrides import any_override

    override = any_override("stages={dit: {kind: diffusers, engine: {ofload: model}}}")
    edges = any_override("edges=[]")
    outputs = any_override("outputs={image: dit}")
    with pytest.raises(GraphError, match="ofload: unknown key; did you mean 'offload'"):
        load_graph(GRAPHS / "diffusers.yaml", "m", [override, edges, outputs])

"""`omnistage warm` starts every stage and leaves nothing behind."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.fakes.stages import FakeStage
from support.gateway.offline import FakeStages
from support.gateway.serving import OMNI
from typer.testing import CliRunner, Result

from omnistage import Omni
from omnistage.server import cli
from omnistage.server.offline import omni
from omnistage.server.runtime.fleet import StageDied
from omnistage.stage_configs.graph import StageGraph


class Stages(FakeStages):
    """Fake ones, of which it is known what they were started with."""

    started: Sequence[str] = ()
    omni: Omni
    graph_of_stages: StageGraph

    def launch(self, name: str, directory: Path) -> FakeStage:
        self.started = [*self.started, name]
        return super().launch(name, directory)

    def make(self, graph: StageGraph, **options: Any) -> Omni:
        self.graph_of_stages = graph
        self.omni = Omni(graph, _launch=self.launch, _make_connector=self.connector, **options)
        return self.omni


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    made = Stages(tmp_path)
    monkeypatch.setattr(omni, "Omni", made.make)
    module = import_module("omnistage.server.cli.warm")
    monkeypatch.setattr(module, "check_machine", lambda graph: None)
    graph = StageGraph.model_validate(OMNI)
    monkeypatch.setattr(module, "resolve", lambda target, model, changes: graph)
    return made


def run(*options: str) -> Result:
    return CliRunner().invoke(cli.app, ["warm", "graph.yaml", *options])


@pytest.mark.parametrize(
    ("options", "load_format"), [((), "dummy"), (("--load-format", "auto"), "auto")]
)
def test_every_stage_is_started_without_weights_unless_they_are_asked_for_and_ended(
    stages: Stages, options: tuple[str, ...], load_format: str
) -> None:
    result = run(*options)
    assert result.exit_code == 0, result.output
    assert "all stages were ready after" in result.output
    assert sorted(stages.started) == sorted(stages.graph_of_stages.stages)
    formats = {one.engine["load_format"] for one in stages.graph_of_stages.stages.values()}
    assert formats == {load_format}
    assert not stages.omni._closing.alive


def test_a_stage_that_cannot_start_is_an_error_that_says_why(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(name: str, directory: Path) -> FakeStage:
        raise StageDied(f"stage {name} does not fit")

    monkeypatch.setattr(stages, "launch", die)
    result = run()
    assert result.exit_code == 1
    assert "does not fit" in result.output


def test_a_graph_file_that_is_not_there_is_refused() -> None:
    result = run("--load-format", "dummy")
    assert result.exit_code == 1
    assert "graph.yaml" in result.output

"""A validated graph of stages: what a YAML file declares, checked before anything loads."""

from pathlib import Path

from pydantic import (
    ValidationInfo,
    field_validator,
    model_validator,
)

from omnistage.stage_configs.declared.edge import Edge
from omnistage.stage_configs.declared.graph import DeclaredGraph
from omnistage.stage_configs.declared.problems import nearest, problem
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_rules import check_graph
from omnistage.stage_configs.rules.determinism import determining


class StageGraph(DeclaredGraph):
    """A declared graph that is sound; raises ValidationError with the place of what is wrong."""

    @field_validator("served_model_name", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("served_model_name")
    @classmethod
    def _names_differ(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for number, name in enumerate(value):
            if name in value[:number]:
                raise problem(f"{name!r} is there twice", number)
        return value

    @field_validator("voice_aliases")
    @classmethod
    def _aliases_differ(cls, value: dict[str, str]) -> dict[str, str]:
        lower = {name.lower(): voice for name, voice in value.items()}
        if len(lower) < len(value):
            raise problem("an alias is given twice, in different case")
        return lower

    @field_validator("stages", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        for name, spec in value.items():
            if isinstance(spec, dict) and spec.get("name", name) != name:
                raise problem("a stage's name is its key", name, "name")
        return {
            name: {**spec, "name": name} if isinstance(spec, dict) else spec
            for name, spec in value.items()
        }

    @field_validator("edges")
    @classmethod
    def _ends_exist(cls, value: tuple[Edge, ...], info: ValidationInfo) -> tuple[Edge, ...]:
        stages = info.data.get("stages", {})
        for number, edge in enumerate(value):
            for key, name in (("from", edge.source), ("to", edge.target)):
                if name not in stages:
                    raise problem(f"no stage {name!r}; {nearest(name, stages)}", number, key)
            if any(
                (edge.source, edge.target) == (one.source, one.target) for one in value[:number]
            ):
                raise problem(f"a second edge from {edge.source} to {edge.target}", number)
        return value

    @field_validator("outputs")
    @classmethod
    def _are_made(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        stages = info.data.get("stages", {})
        for output, name in value.items():
            if name not in stages:
                raise problem(f"no stage {name!r}; {nearest(name, stages)}", output)
            made = KINDS[stages[name].kind].outputs
            if output not in made:
                makes = ", ".join(sorted(made)) or "no output"
                raise problem(f"stage {name!r} does not make {output!r}; it makes {makes}", output)
        return value

    @model_validator(mode="after")
    def _is_a_graph(self) -> "StageGraph":
        check_graph(self)
        return self

    def with_engine(self, kind: str | None = None, **arguments: object) -> "StageGraph":
        """The graph whose stages of a kind, or all, have these arguments for their engines.

        Raises ValueError if there is no such stage.
        """
        chosen = [name for name, stage in self.stages.items() if kind in (None, stage.kind)]
        if not chosen:
            raise ValueError(f"there is no stage of kind {kind}")
        stages = {
            name: stage.model_copy(update={"engine": {**stage.engine, **arguments}})
            if name in chosen
            else stage
            for name, stage in self.stages.items()
        }
        return self.model_copy(update={"stages": stages})

    @property
    def determined(self) -> "StageGraph":
        """The graph, if it is deterministic with all that its stages need for that."""
        if not self.deterministic:
            return self
        stages = {
            name: _determined(stage, has_gpu=self.has_gpu(name))
            for name, stage in self.stages.items()
        }
        return self.model_copy(update={"stages": stages})

    @property
    def undetermined(self) -> list[str]:
        """The stages of a deterministic graph that have no switch for it where they compute."""
        return [
            name
            for name, stage in self.stages.items()
            if self.deterministic and KINDS[stage.kind].is_parallel and not self.has_gpu(name)
        ]

    def with_voices(self, folder: Path) -> "StageGraph":
        """The graph whose stages that keep something of voices keep it in a folder."""
        stages = {
            name: stage.model_copy(update={"options": {"voices": str(folder), **stage.options}})
            if KINDS[stage.kind].stores_voices
            else stage
            for name, stage in self.stages.items()
        }
        return self.model_copy(update={"stages": stages})


def _determined(stage: StageSpec, *, has_gpu: bool) -> StageSpec:
    engine, environment = determining(KINDS[stage.kind], has_gpu=has_gpu)
    update = {
        "engine": {**engine, **stage.engine},
        "environment": {**environment, **stage.environment},
    }
    return stage.model_copy(update=update)

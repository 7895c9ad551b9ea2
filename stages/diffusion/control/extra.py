"""Engine options of other arguments of a pipeline: those that requests may give, and defaults."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.diffusion.loading.engine_options import EngineOptions
from omnistage.stages.diffusion.pipeline import PipelineCall
from omnistage.stages.diffusion.request.extra import (
    fault_of,
    plain_argument,
    problem_of,
    refusal_of,
)


@dataclass(frozen=True, slots=True)
class ExtraOptions(EngineOptions):
    """Engine arguments: which other arguments requests may give, and those of every call."""

    extra: bool | list[str] = True
    call_defaults: JsonMap = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = self.extra
        is_list = isinstance(given, list) and all(isinstance(one, str) for one in given)
        if type(given) is not bool and not is_list:
            raise ValueError(f"extra: must be true, false or a list of arguments, not {given!r}")
        if not isinstance(self.call_defaults, Mapping):
            raise ValueError(f"call_defaults: must be a mapping, not {self.call_defaults!r}")

    def check(self, pipelines: Collection[PipelineCall]) -> None:
        """Raise ValueError for an argument that none of these pipelines, or classes, takes."""
        for name in self.extra if isinstance(self.extra, list) else ():
            _check("extra", [problem_of(one, name) for one in pipelines], name)
        for name, value in self.call_defaults.items():
            problems = [fault_of(one, name, value) for one in pipelines]
            _check("call_defaults", problems, name)

    def defaults(self, pipeline: PipelineCall) -> dict[str, object]:
        """Return the arguments of every call of a pipeline."""
        return {
            name: plain_argument(pipeline, name, value)[name]
            for name, value in self.call_defaults.items()
            if value is not None and not fault_of(pipeline, name, value)
        }

    def arguments(self, pipeline: PipelineCall, given: JsonMap | None) -> dict[str, object]:
        """Return the other arguments of a request's call; raises RequestError for a wrong one."""
        made = self.defaults(pipeline)
        for name, value in (given or {}).items():
            if self.extra is False:
                raise refusal_of(name, "this server takes no other arguments (engine.extra)")
            if isinstance(self.extra, list) and name not in self.extra:
                allowed = ", ".join(sorted(self.extra)) or "none"
                raise refusal_of(name, f"this server takes {allowed} only (engine.extra)")
            try:
                made |= plain_argument(pipeline, name, value)
            except ValueError as error:
                raise refusal_of(name, str(error)) from None
        return made


def _check(option: str, problems: Sequence[str], name: str) -> None:
    if all(problems):
        raise ValueError(f"{option}.{name}: {next(iter(problems), 'there is no pipeline')}")

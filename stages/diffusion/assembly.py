"""Makes what a diffusion stage serves of its engine arguments: a pipeline in its engine."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import GivenArguments
from omnistage.stages.diffusion.control.bound import BoundOptions
from omnistage.stages.diffusion.control.control import Control, ControlOptions
from omnistage.stages.diffusion.control.defaults import DefaultOptions
from omnistage.stages.diffusion.control.extra import ExtraOptions
from omnistage.stages.diffusion.engine.step_batcher import MAX_BATCH, StepBatcher
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions
from omnistage.stages.diffusion.merging.learning import first_calls
from omnistage.stages.diffusion.pipeline import HasComponents
from omnistage.stages.diffusion.profiles.profile import PipelineProfile, profile_of
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.ranks import Ranks
from omnistage.stages.diffusion.request.arguments import STEPS
from omnistage.stages.diffusion.request.needs import needed_fields, warm_up_arguments
from omnistage.stages.diffusion.request.sound import length_for_warm_up, rate_of
from omnistage.stages.diffusion.request.task_classes import classes_over
from omnistage.stages.diffusion.request.tasks import PipelineTask, Tasks, arguments_of, takes
from omnistage.stages.diffusion.request.upstream.coming_arguments import blank_arguments, placed
from omnistage.stages.diffusion.request.upstream.text_tokens import TokenCounter
from omnistage.stages.diffusion.request.videos import counted, output_kind
from omnistage.stages.messages.loading import Phase, tell_loading
from omnistage.stages.messages.to_gateway import PipelineOutput

# Schedulers that stretch a schedule to its end, as Qwen-Image's does, have none of one step.
WARM_UP_STEPS = 2
PARTS = (LoadOptions, ControlOptions, BoundOptions, DefaultOptions, ExtraOptions, RankOptions)
OPTIONS = frozenset({"max_batch", "warm_up"}).union(*(part.names() for part in PARTS))


@dataclass(frozen=True, slots=True)
class StageOptions:
    """Engine arguments of a stage, by what they are for.

    `max_batch`: pictures of one forward. `warm_up`: arguments of the calls that come before the
    first request, such as a small height and width.
    """

    load: LoadOptions
    control: ControlOptions
    bound: BoundOptions
    defaults: DefaultOptions
    extra: ExtraOptions
    ranks: RankOptions
    max_batch: int
    warm_up: JsonMap

    @classmethod
    def of(cls, engine: JsonMap) -> "StageOptions":
        """Read them; raises ValueError for one that is unknown or has a wrong value."""
        unknown = sorted(engine.keys() - OPTIONS)
        if unknown:
            allowed = ", ".join(sorted(OPTIONS))
            raise ValueError(f"unknown engine argument {unknown[0]}; allowed: {allowed}")
        return cls(
            LoadOptions.of(engine),
            ControlOptions.of(engine),
            BoundOptions.of(engine),
            DefaultOptions.of(engine),
            ExtraOptions.of(engine),
            RankOptions.of(engine),
            engine.get("max_batch", MAX_BATCH),
            engine.get("warm_up", {}),
        )


@dataclass(frozen=True, slots=True)
class Assembly:
    """A pipeline in its engine, after its warm-up, and all that requests need to know of it.

    `rate_hz`: of its audio; None where it makes none, or none of a known rate.
    """

    loaded: LoadedPipeline
    control: Control
    engine: StepBatcher
    tasks: Tasks
    tokens: TokenCounter
    profile: PipelineProfile
    kind: PipelineOutput
    rate_hz: int | None


def assemble(
    model: str,
    stage: str,
    options: StageOptions,
    given: GivenArguments | None = None,
    ranks: Ranks | None = None,
) -> Assembly:
    """Load a stage's pipeline, warm it up and start its engine; raises ValueError if it cannot.

    `given`: the arguments that a stage upstream makes: the components that made them are left out.
    """
    if ranks is not None:
        ranks.meet()
    load = options.load
    options.extra.check(classes_over(load.class_in(load.folder_of(model))))
    replaced = () if given is None else given.replaces
    loaded = load.load(model, without=replaced, stage=stage)
    options.defaults.check(loaded.pipeline)
    read = partial(_read, load, model, replaced, stage)
    control = Control(loaded, options.control, read, stage, ranks)
    kind = output_kind(loaded.pipeline)
    rate_hz = rate_of(loaded.pipeline, needs_one=kind == "audio")
    tokens = TokenCounter(loaded.pipeline)
    tasks, once, twice = _warm_up(loaded, options, model, given, has_ranks=ranks is not None)
    if ranks is not None:
        _join(ranks, loaded, once)
    tell_loading(Phase.COMPILING if load.compile else Phase.WARMING_UP)
    engine = StepBatcher(
        loaded.pipeline,
        once,
        twice,
        options.max_batch,
        has_side_lanes=loaded.turns is None,
        denoisers=loaded.parts.dit,
        measures_speed=options.bound.max_megapixels is None,
        beside=ranks,
    )
    control.attach(engine)
    profile = profile_of(*loaded.parts.dit.values())
    return Assembly(loaded, control, engine, tasks, tokens, profile, kind, rate_hz)


def _read(
    load: LoadOptions, model: str, replaced: Collection[str], stage: str, folder: str | None = None
) -> HasComponents:
    """Return the pipeline of a folder, or of the model's, on the host."""
    return load.read(folder or model, without=replaced, stage=stage)


def _warm_up(
    loaded: LoadedPipeline,
    options: StageOptions,
    model: str,
    given: GivenArguments | None,
    has_ranks: bool,
) -> tuple[Tasks, dict[str, object], dict[str, object]]:
    """Return the tasks of a pipeline, and the arguments of its short calls for one and for two."""
    pipeline = loaded.pipeline
    known = arguments_of(pipeline)
    short: dict[str, object] = {
        **({STEPS: WARM_UP_STEPS} if takes(known, STEPS) else {}),
        **length_for_warm_up(known),
        **options.defaults.warm_up(),
        **options.extra.defaults(pipeline),
        **options.warm_up,
    }
    prompt: Mapping[str, object] = {"prompt": "A warm-up."}
    if given is not None:
        blank = blank_arguments(given, pipeline, model, short)
        prompt = placed(blank, loaded.device, loaded.dtype)
    task = PipelineTask.of(pipeline)
    if given is not None:
        needed: Collection[str] = frozenset()  # a stage upstream brings what there is
    elif has_ranks:
        needed = task.needed
    else:
        once = {**counted(1, prompt, known), **short}
        needed = needed_fields(task, loaded.parts.dit, once)
    short = warm_up_arguments(task, needed, short)
    once, twice = ({**counted(num, prompt, known), **short} for num in (1, 2))
    return Tasks.find(pipeline, needed), once, twice


@torch.inference_mode()
def _join(ranks: Ranks, loaded: LoadedPipeline, once: Mapping[str, object]) -> None:
    """Let other ranks have the denoisers, once a call of each was made as without them."""
    tell_loading(Phase.WARMING_UP)
    ranks.shard(loaded)
    alone = first_calls(loaded.pipeline, loaded.parts.dit, once) if ranks.size > 1 else {}
    ranks.join(loaded, alone)
    ranks.share_tiles(loaded)

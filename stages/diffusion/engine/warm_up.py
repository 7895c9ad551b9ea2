"""Learns from two short calls of a pipeline how its steps are merged, and how fast they are."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import torch

from omnistage.stages.diffusion.blocks.compiled import is_compiled
from omnistage.stages.diffusion.engine.changed_attention import attention_kept
from omnistage.stages.diffusion.engine.speed import Speed, Stopwatch, Trials
from omnistage.stages.diffusion.loading.components import controls_in
from omnistage.stages.diffusion.merging.learning import calls_of_two, first_calls, learn
from omnistage.stages.diffusion.merging.targets import Beside, Denoiser
from omnistage.stages.diffusion.pipeline import Arguments, Pipeline

logger = logging.getLogger(__name__)

# The reasons for which requests share no forwards.
CHANGES_ATTENTION = "a call changes the denoiser's attention: one request at a time"
NO_PAIRS = "calls for two pictures cannot be made"
DIFFERS = "merged calls of the denoiser differ from single ones"


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A pipeline whose calls are to be learned.

    `once`, `twice`: arguments of two short calls, the second with twice as many pictures.
    `beside`: ranks among which the rows of a forward are divided.
    """

    pipeline: Pipeline
    denoisers: Mapping[str, torch.nn.Module]
    once: Arguments
    twice: Arguments
    beside: Beside | None = None

    @property
    def stepped(self) -> dict[str, torch.nn.Module]:
        """Returns the modules that run at each step: requests share their forwards."""
        return {**self.denoisers, **controls_in(self.pipeline)}

    def run(self, device: torch.device, measures_speed: bool) -> "Learned":
        """Make the calls; raises ValueError for a pipeline that calls no denoiser.

        To measure its speed takes a few more.
        """
        speed, controls = None, controls_in(self.pipeline)
        watch = Stopwatch(self.pipeline, self.denoisers, device)
        with watch.timed() as took_once, attention_kept(self.denoisers) as is_kept:
            first = first_calls(self.pipeline, self.stepped, self.once)
        with watch.timed() as took_twice:
            second = calls_of_two(self.pipeline, self.stepped, self.once, self.twice, first)
        warm_up = took_once()
        if measures_speed and warm_up is not None:
            speed = warm_up.best(took_twice())
            modules = chain(*(module.modules() for module in self.denoisers.values()))
            if not any(map(is_compiled, modules)):  # each size would be compiled
                speed = Trials(self.pipeline, self.once, watch).speed(speed)
        if not self.denoisers.keys() & first.keys():
            names = ", ".join(self.denoisers)
            raise ValueError(f"the pipeline did not call its denoiser: {names}")
        alone_because = ""
        if not is_kept():
            alone_because = CHANGES_ATTENTION
        elif not second:
            alone_because = NO_PAIRS
        targets = {}
        axes = None
        for name, module in self.stepped.items():
            if name in first and name in second:
                axes = learn(module, first[name], second[name])
            elif name in controls:
                axes = None
            # one that two short calls do not reach is of the same kind as the one before it
            targets[name] = Denoiser(name, module.forward, axes, self.beside)
        if not any(targets[name].may_merge for name in self.denoisers) and not alone_because:
            alone_because = DIFFERS
        if alone_because:
            logger.warning("no forwards are shared: %s", alone_because)
        return Learned(targets, speed, alone_because, runs_one=not is_kept())


@dataclass(frozen=True, slots=True)
class Learned:
    """Result of the warm-up: targets that make the calls of the modules of each step.

    `speed`: None if it was not measured or could not be told. `alone_because`: why no forward is
    shared; empty: some are. `runs_one`: a request at a time.
    """

    targets: Mapping[str, Denoiser]
    speed: Speed | None
    alone_because: str
    runs_one: bool

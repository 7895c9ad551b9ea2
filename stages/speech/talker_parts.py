"""Describes what a family gives to its talker: an engine, a prompt, sampling."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omnistage.connectors.chunk import Tensor
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.request_options import RequestOptions
from omnistage.stages.vllm.step.step_schema import StepSchema


@dataclass(frozen=True, slots=True)
class TalkerEngine:
    """The parts that a family makes its talker's engine of.

    `schema`: what its tokens take and give. `config`: the override of the model's configuration.
    `part`: of the checkpoint. `end_ids`: those that end its speech. `num_unheard`: tokens sampled
    beyond the codes that leave, because a model computes a frame when it is fed. `arguments`: of
    the engine, beside those of every talker.
    """

    schema: StepSchema
    config: Callable[[Any], Any]
    part: ModelPart
    end_ids: tuple[int, ...]
    num_unheard: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpokenPrompt:
    """A request as the engine gets it.

    `ids` hold the places of the prompt's inputs, which are `options` of the bridge
    (`late_input_options`); `num_rows` counts what is known to follow them, too. `about` and
    `tensors` go to the stage that gets the codes, in `Open`. `max_frames`: how long the speech may
    be, if the request does not say it.
    """

    ids: Sequence[int]
    options: RequestOptions
    num_rows: int
    about: msgspec.Struct | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    max_frames: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The defaults of the reference's generate(); without `max_tokens` as many as the engine
    can.
    """

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    min_tokens: int = 0
    max_tokens: int | None = None

"""Finds the classes of Diffusers that run over the weights of another."""

import inspect
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import diffusers
from diffusers.pipelines.auto_pipeline import (
    AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
    AUTO_IMAGE2VIDEO_PIPELINES_MAPPING,
    AUTO_INPAINT_PIPELINES_MAPPING,
    AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
    AUTO_TEXT2VIDEO_PIPELINES_MAPPING,
    AUTO_VIDEO2VIDEO_PIPELINES_MAPPING,
)

from omnistage.stages.diffusion.controlnets import plain_family
from omnistage.stages.diffusion.pipeline import Pipeline
from omnistage.stages.worker.failure import RequestError

logger = logging.getLogger(__name__)

WORDS: tuple[Mapping[str, type], ...] = (
    AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
    AUTO_TEXT2VIDEO_PIPELINES_MAPPING,
)
MAPPINGS = (
    *WORDS,
    AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
    AUTO_INPAINT_PIPELINES_MAPPING,
    AUTO_IMAGE2VIDEO_PIPELINES_MAPPING,
    AUTO_VIDEO2VIDEO_PIPELINES_MAPPING,
)
# Classes over the same weights that no mapping joins: those of words first.
MORE = (
    ("AnimateDiffPipeline", "AnimateDiffVideoToVideoPipeline"),
    ("CogVideoXPipeline", "CogVideoXVideoToVideoPipeline"),
    ("Flux2KleinPipeline", "Flux2KleinInpaintPipeline"),
    ("FluxKontextPipeline", "FluxKontextInpaintPipeline"),
    ("LTXPipeline", "LTXImageToVideoPipeline", "LTXConditionPipeline"),
    ("LTX2Pipeline", "LTX2ImageToVideoPipeline", "LTX2ConditionPipeline"),
    (
        "StableAudio3Pipeline",
        "StableAudio3AudioToAudioPipeline",
        "StableAudio3InpaintPipeline",
    ),
    (
        "SkyReelsV2DiffusionForcingPipeline",
        "SkyReelsV2DiffusionForcingImageToVideoPipeline",
        "SkyReelsV2DiffusionForcingVideoToVideoPipeline",
    ),
)
# Those of which a setting of the pipeline must say that its weights are for both: Wan 2.2 of 5B.
WITH_SETTING = {("WanPipeline", "WanImageToVideoPipeline"): "expand_timesteps"}


def named_in(mapping: Mapping[str, type]) -> list[str]:
    """Return the names of the classes in one of Diffusers' mappings."""
    return [made.__name__ for made in mapping.values()]


def other_classes(made: type, given: Collection[str]) -> list[type]:
    """Return Diffusers' other classes over the weights of a pipeline's class.

    They are made of what is `given`, a pipeline's components and configuration; those that want
    more are left out.
    """
    others = classes_over(made)[1:]
    return [one for one in others if _is_made_of(one, given)]


def _is_made_of(made: type, given: Collection[str]) -> bool:
    missing = [
        key
        for key, parameter in _wanted(made).items()
        if key not in given and parameter.default is parameter.empty
    ]
    if missing:
        logger.info("no %s: the model has no %s", made.__name__, ", ".join(missing))
    return not missing


def classes_over(made: type) -> list[type]:
    """Return a pipeline's class, and Diffusers' for other tasks with the same weights."""
    name = made.__name__
    families = {key for each in MAPPINGS for key, one in each.items() if one.__name__ == name}
    families |= set(map(plain_family, families))  # requests without a control image
    names = [one.__name__ for each in MAPPINGS for key, one in each.items() if key in families]
    names += [one for row in MORE if name in row for one in row]
    others = dict.fromkeys(one for one in names if one != name)
    return [made, *(getattr(diffusers, one) for one in others)]


def _wanted(made: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a pipeline class."""
    return {k: one for k, one in inspect.signature(made.__init__).parameters.items() if k != "self"}


def classes_beside(loaded: Pipeline) -> Iterator[Pipeline]:
    """Yield pipelines of the other classes over the components of one."""
    given = {**loaded.config, **loaded.components}
    others = other_classes(type(loaded), given)
    for (name, other), setting in WITH_SETTING.items():
        if type(loaded).__name__ == name and loaded.config.get(setting):
            others.append(getattr(diffusers, other))
    for found in others:
        # `from_pipe` would do the same, and then cast the weights that both share.
        made = found(**{key: given[key] for key in _wanted(found) if key in given})
        made.set_progress_bar_config(disable=True)
        yield made


def unsupported(message: str, param: str | None = None) -> RequestError:
    """Return the refusal of a request that the model's classes do not serve."""
    return RequestError(400, message, param=param, code="unsupported_model")

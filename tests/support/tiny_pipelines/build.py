"""Builds a tiny pipeline of any class of Diffusers, by the annotations of its `__init__`."""

import inspect
from collections.abc import Sequence
from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler
from pipeline_classes import component_classes
from support.tiny_pipelines import quiet
from support.tiny_pipelines.qwen_images import CLASSES as QWEN_CLASSES
from support.tiny_pipelines.recipes import LARGE, Recipe, recipe_of
from support.tiny_pipelines.sizes import IMAGE_SIZES
from support.tiny_pipelines.sounds import CLASSES as SOUND_CLASSES
from support.tiny_pipelines.texts import (
    can_make,
    make_any_tokenizer,
    make_image_processor,
    make_processor,
    make_text_encoder,
)
from support.tiny_pipelines.unet_sizes import UNET_SIZES
from support.tiny_pipelines.video_sizes import VIDEO_SIZES

from omnistage.stages.diffusion.checkpoint.parts import make_vae
from omnistage.stages.diffusion.loading.modular import ModularAdapter

CLASSES = {**SOUND_CLASSES, **QWEN_CLASSES}
SIZES = {**IMAGE_SIZES, **UNET_SIZES, **VIDEO_SIZES}
GUIDERS = ("ClassifierFreeGuidance", "AdaptiveProjectedMixGuidance")
KEPT = ("text_encoder", "tokenizer", "transformer", "unet", "scheduler")


def make_scheduler() -> DDIMScheduler:
    """Return a scheduler for U-Nets."""
    return DDIMScheduler(steps_offset=1, clip_sample=False)


class Unbuilt(Exception):
    """No tiny pipeline of a class can be built here; the text says which part is missing."""


def build(made: Any, seed: int = 0) -> Any:
    """Return a pipeline of a class with random weights, the same for the same seed.

    Raises Unbuilt if a component has no stand-in.
    """
    if made.__name__ in LARGE:
        raise Unbuilt(f"{made.__name__} makes no small images")
    recipe = recipe_of(made)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if made in CLASSES:
            return quiet(CLASSES[made]())
        if issubclass(made, ModularAdapter):
            return quiet(_modular(made, recipe))
        parts: dict[str, Any] = {}
        for name, parameter in inspect.signature(made.__init__).parameters.items():
            if name != "self":
                parts |= _part(made, name, parameter, recipe)
        return quiet(made(**parts))


def _modular(made: type[ModularAdapter], recipe: Recipe) -> ModularAdapter:
    """Return a modular pipeline with each component that its blocks expect from a folder."""
    modular = made.modular_class(made.blocks_class())
    parts: dict[str, Any] = {}
    for name in modular.pretrained_component_names:
        given = recipe.parts.get(name, {})
        classes = component_classes(made)[name]
        is_made = not isinstance(given, dict)
        parts[name] = given() if is_made else _component(made.__name__, name, classes, given)
    modular.register_components(**parts)
    return made(modular)


def _part(made: Any, name: str, parameter: inspect.Parameter, recipe: Recipe) -> dict[str, Any]:
    """Return a parameter of a pipeline's `__init__` as an argument, or nothing for its default."""
    given = recipe.parts.get(name)
    if given is not None and not isinstance(given, dict):
        return {name: given()}
    classes = [one for one in component_classes(made)[name] if one is not type(None)]
    is_free = parameter.default is not parameter.empty
    is_left = name in made._optional_components or parameter.default is None
    if given is None and is_left and not name.startswith(KEPT):
        return {} if is_free else {name: None}
    if is_free and not any(issubclass(one, torch.nn.Module) for one in classes):
        return {} if name != "scheduler" else {name: make_scheduler()}
    return {name: _component(made.__name__, name, classes, given or {})}


def _component(pipeline: str, name: str, classes: Sequence[type], more: dict[str, Any]) -> Any:
    for made in classes:
        known = made.__name__
        if known == "AutoencoderKL" and not more:
            return make_vae()
        if known in SIZES:
            return getattr(diffusers.models, known, made)(**{**SIZES[known], **more}).eval()
        if "Scheduler" in known:
            return make_scheduler() if known == "KarrasDiffusionSchedulers" else made(**more)
        if "Tokenizer" in known or known == "TokenizersBackend":
            return make_any_tokenizer(known)
        if known.endswith("Processor") and known != "CLIPImageProcessor":
            return make_processor()
        if known == "CLIPImageProcessor":
            return make_image_processor()
        if known in GUIDERS:
            return made()
        if made.__module__.startswith("transformers.") and can_make(known):
            return make_text_encoder(known)
    raise Unbuilt(f"{pipeline}.{name}: no stand-in of {', '.join(c.__name__ for c in classes)}")

"""Finds the outputs of a pipeline in the source of its class: nothing is imported or read."""

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from textwrap import dedent

from omnistage.stage_configs.checkpoint import MODULAR_PIPELINE, PIPELINE, Checkpoint
from omnistage.stage_configs.kinds import Offer
from omnistage.stages.diffusion.class_source import classes_named, method_of, source_folder
from omnistage.stages.diffusion.controlnets import (
    OPTION,
    controlled_name,
    controlnet_folders,
    plain_family,
)
from omnistage.stages.messages.to_gateway import PipelineOutput

IMAGES, FRAMES = ("images", "image"), ("frames", "video")
RESULTS = ("images", "frames", "image", "video")  # names of pixels in what a call returns
SOUNDS = ("audios", "audio", "sound")  # and of samples
MODULAR = "modular_pipelines"  # the folder of Diffusers that has them
GUIDANCE = "guidance_scale"  # of a modular pipeline's guider, beside the inputs of its blocks
# Arguments for the length of audio in seconds.
LENGTHS = (
    "audio_end_in_s",
    "audio_length_in_s",
    "audio_duration_s",
    "audio_duration",
    "duration",
)


@dataclass(frozen=True, slots=True)
class PipelineSignature:
    """A pipeline's `__call__`: its parameters, and names of what it returns (empty: unknown)."""

    name: str
    parameters: frozenset[str]
    returns: frozenset[str]

    @classmethod
    def read(cls, name: str, function: ast.FunctionDef) -> "PipelineSignature":
        """Read it from the syntax tree of the method of a class with this name."""
        arguments = function.args
        named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        returned = (one.value for one in ast.walk(function) if isinstance(one, ast.Return))
        keys = (key for one in returned for key in _keys(one))
        return cls(name, frozenset(one.arg for one in named), frozenset(keys))

    @property
    def output(self) -> PipelineOutput:
        """Returns what is made: `image`, `video` (with or without audio) or `audio` alone."""
        is_video = self.returns.intersection(FRAMES) and not self.returns.intersection(IMAGES)
        if "num_frames" in self.parameters or is_video:
            return "video"
        if self.returns:
            return "image" if self.returns.intersection(RESULTS) else "audio"
        is_timed = bool(self.parameters.intersection(LENGTHS))
        return "audio" if is_timed and "height" not in self.parameters else "image"

    @property
    def has_sound(self) -> bool:
        """Returns whether its videos come with audio."""
        return self.output == "video" and bool(self.returns.intersection(SOUNDS))

    def check(self) -> None:
        """Raise ValueError for a pipeline that returns no images, frames or audio."""
        if self.returns and not self.returns.intersection((*RESULTS, *SOUNDS)):
            made = ", ".join(sorted(self.returns))
            raise ValueError(
                f"{self.name} returns {made} only: pipelines are served that return images, "
                "frames or audio"
            )


def offer(checkpoint: Checkpoint, engine: Mapping[str, object]) -> Offer | None:
    """Return what a checkpoint's pipeline makes, None where its class is not of Diffusers.

    Raises ValueError if it makes nothing that is served.
    """
    name = checkpoint.json(PIPELINE).get("_class_name")
    given = engine.get(OPTION)
    if given is not None:
        name = _controlled(checkpoint, engine, given)
    if not checkpoint.has(PIPELINE):
        return _modular_offer(checkpoint, engine)
    if engine.get("pipeline_class") is not None or not isinstance(name, str):
        return None
    call = call_of(name)
    if call is None:
        return None
    call.check()
    _check_names(call, engine)
    return Offer(frozenset({call.output}))


def _controlled(checkpoint: Checkpoint, engine: Mapping[str, object], given: object) -> str:
    """Return the name of the class with the ControlNets beside a pipeline; raises ValueError."""
    if engine.get("pipeline_class") is not None:
        raise ValueError(f"{OPTION}: not with pipeline_class, which takes the folder's parts alone")
    if not checkpoint.has(PIPELINE):
        raise ValueError(f"{OPTION}: only beside a pipeline with a {PIPELINE}")
    return controlled_name(checkpoint, controlnet_folders(given))


def _modular_offer(checkpoint: Checkpoint, engine: Mapping[str, object]) -> Offer | None:
    """Return what a modular pipeline makes, by the inputs and outputs that its blocks document."""
    name = checkpoint.json(MODULAR_PIPELINE).get("_class_name")
    blocks = checkpoint.json(MODULAR_PIPELINE).get("_blocks_class_name")
    if engine.get("pipeline_class") is not None or not isinstance(name, str):
        return None
    default = _default_blocks(name)
    own = _modular_call(name, blocks) if default and isinstance(blocks, str) else None
    call = own or _modular_call(name, default)
    if call is None:
        return None
    call.check()
    _check_names(call, engine)
    return Offer(frozenset({call.output}))


def _modular_call(name: str, blocks: str) -> PipelineSignature | None:
    """Return the call that the docstring of a class of blocks describes; None without one."""
    for made in classes_named(blocks, MODULAR):
        found = re.search(
            r"\n +Inputs:\n(.*)\n +Outputs:\n(.*)", ast.get_docstring(made, False) or "", re.S
        )
        if found is not None:
            inputs, outputs = (re.findall(r"^ +(\w+) \(`", part, re.M) for part in found.groups())
            returns = ("frames" if one == "videos" else one for one in outputs)
            return PipelineSignature(name, frozenset((*inputs, GUIDANCE)), frozenset(returns))
    return None


def _default_blocks(name: str) -> str:
    """Return the blocks that a modular pipeline's class has, or the class before it."""
    for made in classes_named(name, MODULAR):
        for part in made.body:
            match part:
                case ast.Assign(
                    targets=[ast.Name(id="default_blocks_name")], value=ast.Constant(value=str(one))
                ):
                    return one
        bases = (one.id for one in made.bases if isinstance(one, ast.Name))
        return next(filter(None, map(_default_blocks, bases)), "")
    return ""


def _check_names(call: PipelineSignature, engine: Mapping[str, object]) -> None:
    """Raise ValueError for arguments in a graph file that no class of the weights takes."""
    known = set(call.parameters)
    for name in _classes_over(call.name):
        other = call_of(name)
        known |= other.parameters if other is not None else set()
    for option in ("extra", "call_defaults"):
        given = engine.get(option)
        for name in given if isinstance(given, list | Mapping) else ():
            if name not in known:
                near = get_close_matches(str(name), known)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise ValueError(f"{option}.{name}: {call.name} takes no {name}{hint}")


@cache
def _classes_over(name: str) -> frozenset[str]:
    """Return the classes that Diffusers lists for other tasks with the weights of a class."""
    folder = source_folder()
    text = "" if folder is None else (folder / "auto_pipeline.py").read_text("utf-8")
    pairs = re.findall(r'\("([\w.-]+)", (\w+)\)', text)
    families = {
        one for family, made in pairs if made == name for one in (family, plain_family(family))
    }
    return frozenset(made for family, made in pairs if family in families)


def _keys(returned: ast.expr | None) -> list[str]:
    """Return the names in what a call returns: an object made with keywords, or a dict.

    None for the call of another class, which gets its arguments by name.
    """
    match returned:
        case ast.Call(func=ast.Attribute(attr="__call__")):
            return []
        case ast.Call(keywords=keywords):
            return [one.arg for one in keywords if one.arg and not _is_none(one.value)]
        case ast.Dict(keys=keys):
            values = (key.value for key in keys if isinstance(key, ast.Constant))
            return [value for value in values if isinstance(value, str)]
    return []


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def check_class(made: type) -> None:
    """Raise ValueError for a user's pipeline class that makes nothing that is served."""
    signature_of(made).check()


def signature_of(made: type) -> PipelineSignature:
    """Return the call of a loaded class: by its source, else by its parameters alone."""
    if hasattr(made, "pipeline_signature"):  # of a modular pipeline, whose call has no source
        found: PipelineSignature = made.pipeline_signature
        return found
    try:
        (function,) = ast.parse(dedent(inspect.getsource(made.__call__))).body
        assert isinstance(function, ast.FunctionDef)
    except (OSError, TypeError, SyntaxError, ValueError, AssertionError):
        parameters = inspect.signature(made.__call__).parameters
        return PipelineSignature(made.__name__, frozenset(parameters), frozenset())
    return PipelineSignature.read(made.__name__, function)


@cache
def call_of(name: str) -> PipelineSignature | None:
    """Return the call of one of Diffusers' pipelines; None if there is no such class."""
    for made in classes_named(name):
        method = method_of(made, "__call__")
        if method is not None:
            return PipelineSignature.read(name, method)
        for base in made.bases:
            inherited = call_of(base.id) if isinstance(base, ast.Name) else None
            if inherited is not None:
                return PipelineSignature(name, inherited.parameters, inherited.returns)
    return None

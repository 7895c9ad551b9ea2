"""The number of frames that a pipeline makes: its default, and the numbers that it rounds to.

Video VAEs keep one latent for `step` frames and one more for the first, so most pipelines make k
times that step and one frame. The step has a few names among their attributes. A default that is
None is replaced in the pipeline's call, by a number in its code.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping

from omnistage.stages.diffusion.pipeline import PipelineCall
from omnistage.stages.diffusion.request.sides import function_of, value_of
from omnistage.stages.diffusion.request.tasks import arguments_of

ARGUMENT = "num_frames"
NAMES = (ARGUMENT, "video_length", "frames")  # of the number, as Diffusers' classes call it
STEPS = ("vae_scale_factor_temporal", "vae_temporal_compression_ratio")


def frames_name(known: Mapping[str, inspect.Parameter]) -> str | None:
    """Return the parameter of a call that is the number of frames; None if it takes none."""
    found = (one for one in NAMES if one in known)
    return next((one for one in found if one == ARGUMENT or type(known[one].default) is int), None)


def default_frames(pipeline: PipelineCall) -> int | None:
    """Return how many frames are made unless a call asks for others; None if that is unknown."""
    known = arguments_of(pipeline)
    name = frames_name(known)
    if name is None:
        return None
    default = known[name].default
    if default is not None:
        return default if type(default) is int else None
    function = function_of(type(pipeline).__call__)
    found = [] if function is None else [value_of(one, function, pipeline) for one in _in(function)]
    return next((one for one in found if type(one) is int and one > 0), None)


def frame_step(pipeline: object) -> int:
    """Return the step of the numbers of frames, each k steps and one frame; 1 for any number."""
    found = (getattr(pipeline, name, None) for name in STEPS)
    return next((one for one in found if type(one) is int and one > 0), 1)


def _in(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield what a call takes where it was given no number of frames."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and _is_missing(node.test):
            for one in node.body:
                match one:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == ARGUMENT:
                        yield value
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.IfExp(body=ast.Name(id=given), orelse=value),
            ) if name == given == ARGUMENT:
                yield value


def _is_missing(test: ast.expr) -> bool:
    """Return whether a condition has `num_frames is None` in it."""
    return any(
        isinstance(node, ast.Compare) and ast.unparse(node) == f"{ARGUMENT} is None"
        for node in ast.walk(test)
    )

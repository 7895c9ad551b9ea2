"""Media that a pipeline needs beside its prompt: found by calls that end at its denoiser.

A class does not say it: most have None as the default of what they cannot do without.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch

from omnistage.stages.diffusion.request.media import media_arguments, with_frames
from omnistage.stages.diffusion.request.places import stand_ins
from omnistage.stages.diffusion.request.tasks import PipelineTask

logger = logging.getLogger(__name__)

# Tried one after another, as far as a pipeline has places for them.
TRIES = (
    (),
    ("image",),
    ("video",),
    ("control_image",),
    ("control_video",),
    ("image", "video"),
    ("image", "mask"),
    ("video", "mask"),
    ("image", "control_image"),
    ("video", "control_video"),
    ("image", "mask", "control_image"),
    ("control_video", "reference_image"),
    ("image", "reference_image"),
    ("image", "mask", "reference_image"),
    ("image", "control_video", "face_video"),
)


class _ReachedDenoiser(BaseException):
    """A call has come to its denoiser."""


def warm_up_arguments(
    task: PipelineTask, fields: Collection[str], arguments: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments of a call with blank media of these fields."""
    number = arguments.get("num_frames")
    media = stand_ins(task.pipeline, fields, number if isinstance(number, int) else None)
    media, found = with_frames(task, media, arguments)
    given = {name: value for name, value in found.items() if value is not None}
    return given | media_arguments(task, media, given)


@torch.inference_mode()
def needed_fields(
    task: PipelineTask, denoisers: Mapping[str, torch.nn.Module], arguments: Mapping[str, object]
) -> frozenset[str]:
    """Return the fewest fields of media with which a call comes to a denoiser.

    Where none does it, those that the class says: the warm-up then has the pipeline's own error.
    """
    optional = [one for one in TRIES if set(one) <= set(task.places)]
    if len(optional) < 2:
        return task.needed
    for fields in optional:
        try:
            with _ended_at(denoisers):
                task.pipeline(**warm_up_arguments(task, fields, arguments))
        except _ReachedDenoiser:
            return frozenset(fields)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a class refuses by any of them
            logger.debug("%s without more than %s: %s", type(task.pipeline), fields, error)
    return task.needed


@contextmanager
def _ended_at(denoisers: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    def end(*_: object) -> None:
        raise _ReachedDenoiser

    hooks = [one.register_forward_pre_hook(end) for one in denoisers.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

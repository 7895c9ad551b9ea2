"""Reads the return values of pipelines, of any form, as images, and checks them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omnistage.stages.diffusion.makes import RESULTS
from omnistage.stages.worker.failure import RequestError

Picture = npt.NDArray[np.uint8]
Pictures = Sequence[Any] | torch.Tensor | npt.NDArray[np.generic]
CHANNELS = (1, 3, 4)


def pictures_of(result: object, num: int) -> list[Picture]:
    """Pictures [height, width, channels], as many as asked for; of a video its frames.

    Of a picture in layers, a list of as many for each, all layers, picture by picture.

    A result is a mapping (`images`, or `frames` of videos), a tensor [n, channels, height, width],
    an array [n, height, width, channels], or a list of tensors, arrays and PIL's pictures, all of
    0..1 or whole numbers of 0..255. Raises RequestError for any other, and for pictures that are
    missing: None, or too few.
    """
    pictures, is_video = _unwrapped(result)
    if is_video:
        _check_count(len(pictures), num)
        pictures = pictures[0] if num else []
    else:
        pictures = _layers(pictures, num)
    missing = [index + 1 for index, picture in enumerate(pictures) if picture is None]
    if missing:
        raise _wrong(f"made no picture {missing[0]} of {len(pictures)}")
    return to_uint8(pictures)


def thoughts_of(result: object, num: int) -> list[str]:
    """Return what a pipeline wrote before each of `num` pictures, or nothing.

    A result's `thoughts` has one for each prompt.
    """
    thoughts: Sequence[str] = getattr(result, "thoughts", None) or ()
    return [thoughts[index * len(thoughts) // num] for index in range(num) if thoughts]


def to_uint8(pictures: Iterable[object]) -> list[Picture]:
    """Pictures [height, width, channels] of 0..255; raises RequestError for what is none."""
    return [_picture(one) for one in pictures]


def is_layered(picture: object) -> bool:
    """Return whether one of a call's pictures is the layers of one."""
    is_array = isinstance(picture, torch.Tensor | np.ndarray) and picture.ndim == 4
    return is_array or (isinstance(picture, list) and bool(picture) and np.ndim(picture[0]) == 3)


def _layers(pictures: Pictures, num: int) -> Pictures:
    """Return pictures, of layered ones all layers: Diffusers parts several wrongly."""
    if not len(pictures) or not all(map(is_layered, pictures)):
        _check_count(len(pictures), num)
        return pictures
    layers = [one for picture in pictures for one in picture]
    if len(pictures) != num or len(layers) % num:
        raise _wrong(f"made {len(layers)} layers of {len(pictures)} pictures for a batch of {num}")
    return layers


def _picture(picture: Any) -> Picture:
    if isinstance(picture, torch.Tensor):
        values = picture.detach().cpu()
        values = values.float() if values.is_floating_point() else values
        array = np.moveaxis(values.numpy(), 0, -1) if values.dim() == 3 else values.numpy()
    else:
        array = np.asarray(picture)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in CHANNELS or 0 in array.shape:
        raise _wrong(f"made a picture of shape {list(np.shape(picture))}")
    if array.dtype != np.uint8:
        if not np.issubdtype(array.dtype, np.floating):
            raise _wrong(f"made a picture of {array.dtype}")
        array = (np.nan_to_num(array).clip(0, 1) * 255).round().astype(np.uint8)
    return np.ascontiguousarray(np.repeat(array, 3, -1) if array.shape[-1] == 1 else array)


def _unwrapped(result: object) -> tuple[Pictures, bool]:
    """The pictures, one after the other; and whether they are videos."""
    if isinstance(result, Mapping):
        key = next((one for one in RESULTS if result.get(one) is not None), None)
        if key is None:
            raise _wrong(f"returned {', '.join(map(str, result)) or 'an empty mapping'} only")
        pictures, _ = _unwrapped(result[key])
        return pictures, key in ("frames", "video")
    if isinstance(result, tuple) and len(result) == 1:  # of a call with return_dict=False
        return _unwrapped(result[0])
    if isinstance(result, torch.Tensor | np.ndarray):
        if result.ndim < 4:
            raise _wrong(f"returned a {type(result).__name__} of shape {list(result.shape)}")
        return result, False
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return result, False
    raise _wrong(f"returned a {type(result).__name__}")


def _check_count(made: int, num: int) -> None:
    if made != num:
        raise _wrong(f"made {made} pictures for a batch of {num}")


def _wrong(what: str) -> RequestError:
    return RequestError(500, f"The pipeline {what}.", code="bad_pipeline_output")

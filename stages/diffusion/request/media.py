"""The media that a request brings along, by what they are for."""

from typing import Any

import numpy.typing as npt

from omnistage.stages.worker.stage import Opened

Media = dict[str, list[npt.NDArray[Any]]]


def media_of(opened: Opened) -> Media:
    """Return a request's media by field, in the order in which they came."""
    media: Media = {}
    for one in opened.request.given_media:
        media.setdefault(one.field, []).append(_array(opened, one.tensor))
    return media


def _array(opened: Opened, name: str) -> npt.NDArray[Any]:
    """Return a medium that came with the request, or before it in pieces."""
    if name in opened.tensors:
        return opened.tensors[name].numpy()
    return next(one.data() for (called, _), one in opened.media.items() if called == name)

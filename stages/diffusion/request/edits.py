"""The pictures that a request brings along, as a pipeline's arguments."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from omnistage.stage_configs.work import fitting_size
from omnistage.stages.diffusion.request.tasks import arguments_of

Pixels = npt.NDArray[np.uint8]

WARM_UP_SIZE = (64, 64)


def pictures_for_warm_up(pipeline: Any) -> dict[str, Image.Image]:
    """Returns what a pipeline that edits needs beside a prompt."""
    given = {"image": Image.new("RGB", WARM_UP_SIZE), "mask_image": Image.new("L", WARM_UP_SIZE)}
    return {name: picture for name, picture in given.items() if name in arguments_of(pipeline)}


def picture_arguments(
    pipeline: object, images: Sequence[Pixels], mask: Pixels | None, others: Collection[str]
) -> dict[str, object]:
    """The arguments of an edit: pictures [height, width, 3], mask [height, width], 255 to repaint.

    A pipeline that repaints its picture makes one of the same size, unless a size is among the
    `others`.
    """
    if not images:
        return {}
    pictures = [Image.fromarray(image) for image in images]
    arguments: dict[str, object] = {"image": pictures if len(pictures) > 1 else pictures[0]}
    if mask is not None:
        arguments["mask_image"] = Image.fromarray(mask)
    if "strength" in arguments_of(pipeline) and not {"width", "height"} & set(others):
        width, height = fitting_size(*pictures[0].size)
        arguments |= {"width": width, "height": height}
    return arguments

"""Finds the tasks of one set of weights: images from words, from images, from a masked image.

Diffusers has a class for each, over the same components; which belong together it knows itself.
"""

import inspect
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from diffusers.pipelines.auto_pipeline import (
    AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
    AUTO_INPAINT_PIPELINES_MAPPING,
    AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
)

from omnistage.stages.worker.failure import RequestError

logger = logging.getLogger(__name__)

MAPPINGS: tuple[Mapping[str, Any], ...] = (
    AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
    AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
    AUTO_INPAINT_PIPELINES_MAPPING,
)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The pipelines over one set of components; None where Diffusers has none."""

    text: Any
    image: Any
    mask: Any

    @classmethod
    def find(cls, loaded: Any) -> "Tasks":
        """Returns what the loaded pipeline does itself, and what Diffusers' other classes add to
        it.
        """
        text, image, mask = (_other(loaded, mapping) for mapping in MAPPINGS)
        known = arguments_of(loaded)
        if "image" not in known:
            text = loaded
        elif "mask_image" in known:
            mask = loaded
        else:
            image = loaded
        return cls(text, image, mask)

    def choose(self, num_images: int, has_mask: bool) -> Any:
        """The pipeline of one request; raises RequestError if there is none."""
        if num_images == 0:
            if self.text is None:
                raise _unsupported("This model edits pictures: POST /v1/images/edits.")
            return self.text
        chosen = self.mask if has_mask else self.image
        if chosen is None:
            what = "a mask" if has_mask else "pictures"
            param = "mask" if has_mask else "image"
            raise _unsupported(f"This model has no pipeline that takes {what}.", param)
        if num_images > 1 and "strength" in arguments_of(chosen):
            raise RequestError(
                400, "This model takes one picture.", param="image", code="invalid_value"
            )
        return chosen


def arguments_of(pipeline: Any) -> Mapping[str, inspect.Parameter]:
    """Returns what a pipeline can be called with."""
    return inspect.signature(pipeline.__call__).parameters


def makes_alpha(pipeline: Any) -> bool:
    """Returns whether its pictures have an alpha channel: its VAE has four channels of colour."""
    config = getattr(getattr(pipeline, "vae", None), "config", {})
    return 4 in (config.get("out_channels"), config.get("input_channels"))


def other_class(made: type, mapping: Mapping[str, Any], given: Collection[str]) -> Any:
    """Return the class of a mapping that belongs to a pipeline's class, None without one.

    It is made of what is `given`, a pipeline's components and configuration; None if it wants more.
    """
    name = made.__name__
    family = next(
        (key for each in MAPPINGS for key, one in each.items() if one.__name__ == name), None
    )
    found = mapping.get(family) if family is not None else None
    if found is None or found is made:
        return found
    missing = [
        key
        for key, parameter in _wanted(found).items()
        if key not in given and parameter.default is parameter.empty
    ]
    if missing:
        logger.info("no %s: the model has no %s", found.__name__, ", ".join(missing))
        return None
    return found


def _wanted(made: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a pipeline class."""
    return {k: one for k, one in inspect.signature(made.__init__).parameters.items() if k != "self"}


def _other(loaded: Any, mapping: Mapping[str, Any]) -> Any:
    """The class of a mapping that belongs to a pipeline, made over the same components."""
    given = {**loaded.config, **loaded.components}
    found = other_class(type(loaded), mapping, given)
    if found is None or found is type(loaded):
        return loaded if found is not None else None
    # `from_pipe` would do the same, and then cast the weights that both share.
    made = found(**{key: given[key] for key in _wanted(found) if key in given})
    made.set_progress_bar_config(disable=True)
    return made


def _unsupported(message: str, param: str | None = None) -> RequestError:
    return RequestError(400, message, param=param, code="unsupported_model")

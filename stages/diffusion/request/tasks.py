"""Finds the tasks of one set of weights: what is made of words, of pictures, of videos.

Diffusers has a class for each, over the same components; which belong together it knows itself, but
for those in `MORE`.
"""

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from diffusers.pipelines.auto_pipeline import (
    AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
    AUTO_INPAINT_PIPELINES_MAPPING,
    AUTO_VIDEO2VIDEO_PIPELINES_MAPPING,
)

from omnistage.stages.diffusion.pipeline import Pipeline, PipelineCall
from omnistage.stages.diffusion.request.keyframes import KEYED, POSITIONS, is_keyed, keyed
from omnistage.stages.diffusion.request.places import (
    SEVERAL,
    Media,
    MediaPlace,
    RequestMedium,
    limited,
    num_controls,
    places_of,
)
from omnistage.stages.diffusion.request.task_classes import (
    MORE,
    WORDS,
    classes_beside,
    named_in,
    unsupported,
)
from omnistage.stages.worker.failure import RequestError

# Those of which a setting of the pipeline must say that its weights are for both: Wan 2.2 of 5B.
BACKGROUND = "background_video"  # that a mask is laid over in one mode of its class alone
INPUT = "input_reference"  # the API's name of a video's first picture


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """A pipeline, the fields of media that it has places for, and those that it needs."""

    pipeline: Pipeline
    places: Mapping[str, MediaPlace]
    needed: frozenset[str]

    @classmethod
    def of(cls, pipeline: Pipeline, needed: Collection[str] | None = None) -> "PipelineTask":
        """Return a pipeline's task; `needed`: None for what its class says."""
        known = arguments_of(pipeline)
        places = limited(places_of(known, takes_several(pipeline)), type(pipeline))
        found = frozenset(_needed(type(pipeline), known, places) if needed is None else needed)
        return cls(pipeline, places, found)

    @property
    def fields(self) -> list[str]:
        """Return the fields of media that a request may have."""
        is_keyed = type(self.pipeline).__name__ in KEYED
        return list(dict.fromkeys((*self.places, *(POSITIONS if is_keyed else ()))))

    def missing(self, given: Collection[str]) -> list[str]:
        """Return the fields that are needed beside those given, in the order of their places."""
        return [field for field in self.places if field in self.needed and field not in given]

    def may_read(self, media: Media, given: Media) -> bool:
        """Return whether a request's media may be taken as others; `given`: a reading of them."""
        if is_keyed(given):
            return type(self.pipeline).__name__ in KEYED
        return "mask" in media or "mask" not in given or self._may_repaint_all

    def takes(self, names: Collection[str]) -> bool:
        """Return whether its call takes all arguments of these names."""
        known = arguments_of(self.pipeline)
        return all(takes(known, name) for name in names)

    @property
    def _may_repaint_all(self) -> bool:
        """Return whether a mask of the whole picture leaves something of it, by its class."""
        strength = arguments_of(self.pipeline).get("strength")
        return strength is not None and isinstance(strength.default, float) and strength.default < 1

    def check(self, media: Media, kind: str) -> None:
        """Raise RequestError for more, or fewer, media of a field than are taken."""
        for field, given in media.items():
            least, most = 1, self.places[field].most
            if field == "control_image" and "Union" not in type(self.pipeline).__name__:
                least = most = num_controls(self.pipeline)
            if not least <= len(given) <= most:
                number = f"{most}" if least == most else f"at most {most}"
                raise _wrong_number(_name(field, kind), number, given)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks over one set of components; the loaded pipeline's is the first."""

    all: Sequence[PipelineTask]

    @classmethod
    def find(cls, loaded: Pipeline, needed: Collection[str] | None = None) -> "Tasks":
        """Return the loaded pipeline's, and what Diffusers' other classes add to it.

        `needed`: fields of media without which the loaded one makes nothing; None for what its
        class says.
        """
        return cls((PipelineTask.of(loaded, needed), *map(PipelineTask.of, classes_beside(loaded))))

    @property
    def first(self) -> PipelineTask:
        """The task of words alone, else the first."""
        return next((one for one in self.all if not one.needed), self.all[0])

    def of(self, *given: str, extra: Collection[str] = ()) -> PipelineTask | None:
        """Return the first task for media of these fields, None if there is none.

        One whose call takes all arguments of `extra` goes first.
        """
        fitting = [one for one in self.all if _fits(one, given)]
        taking = [one for one in fitting if one.takes(extra)]
        return next(iter(taking or fitting), None)

    def choose(
        self, media: Media, kind: str = "image", extra: Collection[str] = ()
    ) -> tuple[PipelineTask, Media]:
        """Return the task of a request, and its media by the places of that task.

        `kind`: `image` or `video`, the output. `extra`: names of the call's other arguments. Raises
        RequestError if no task takes just these media.
        """
        for given in _readings(media):
            task = self.of(*given, extra=extra)
            if task is not None and task.may_read(media, given):
                task.check(given, kind)
                return task, given
        raise self._refusal(media, kind)

    def _refusal(self, media: Media, kind: str) -> RequestError:
        taken = dict.fromkeys(field for task in self.all for field in task.fields)
        takes = ", ".join(_name(field, kind) for field in taken) or "words alone"
        for field in media:
            if field not in taken:
                name = _name(field, kind)
                message = f"This model has no place for {name}; it takes {takes}."
                return unsupported(message, name)
            if len(media[field]) > 1 and not any(field in one.places for one in self.all):
                return _wrong_number(_name(field, kind), "1", media[field])
        open_to_all = [one for one in self.all if one.places.keys() >= media.keys()]
        if not open_to_all:
            names = [_name(field, kind) for field in media]
            message = f"This model does not take {' and '.join(names)} together."
            return unsupported(message, names[-1])
        task = min(open_to_all, key=lambda one: len(one.missing(media)))
        name = _name(task.missing(media)[0], kind)
        where = " (POST /v1/images/edits)" if name == "image" else ""
        message = f"{name} is missing: this model makes nothing without it{where}."
        return RequestError(400, message, param=name, code="invalid_value")


def _wrong_number(name: str, number: str, given: Sequence[RequestMedium]) -> RequestError:
    message = f"This model takes {number} of {name}; there are {len(given)}."
    return RequestError(400, message, param=name, code="invalid_value")


def _name(field: str, kind: str) -> str:
    """Return the API's name of a field of media; `kind`: the output that is asked for."""
    return INPUT if (field, kind) == ("image", "video") else field


def _fits(task: PipelineTask, given: Collection[str]) -> bool:
    return task.places.keys() >= set(given) and not task.missing(given)


def _readings(media: Media) -> Iterator[Media]:
    """Yield a request's media as they are named, and as others that they may be.

    Pictures beside the first are references of a task that has a place for them; a picture without
    a mask is repainted everywhere; first and last frames are a video with its mask.
    """
    pictures = media.get("image", [])
    if len(pictures) > 1 and "reference_image" not in media:
        yield {**media, "image": pictures[:1], "reference_image": pictures[1:]}
    yield media
    if pictures and "mask" not in media:
        height, width = pictures[0].data.shape[:2]
        yield {**media, "mask": [RequestMedium(np.full((height, width), 255, np.uint8))]}
    if as_video := keyed(media):
        yield as_video


def arguments_of(pipeline: PipelineCall) -> Mapping[str, inspect.Parameter]:
    """Returns what a pipeline can be called with."""
    return inspect.signature(pipeline.__call__).parameters


def takes(known: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Returns whether a call with these parameters can be given an argument of a name."""
    return name in known or any(one.kind is one.VAR_KEYWORD for one in known.values())


def takes_several(pipeline: PipelineCall) -> bool:
    """Return whether a list in `image` is references of one result; by the class, if it is known.

    Classes of others than Diffusers may do so, unless they repaint their picture.
    """
    made = type(pipeline)
    if made.__module__.startswith("diffusers."):
        return made.__name__ in SEVERAL
    return "strength" not in arguments_of(pipeline)


def makes_alpha(pipeline: object) -> bool:
    """Returns whether its pictures have an alpha channel: its VAE has four channels of colour."""
    config = getattr(getattr(pipeline, "vae", None), "config", {})
    return 4 in (config.get("out_channels"), config.get("input_channels"))


def _needed(
    made: type, known: Mapping[str, inspect.Parameter], places: Mapping[str, MediaPlace]
) -> Iterator[str]:
    """Yield the fields that a class needs, by its mapping in Diffusers and its signature."""
    name = made.__name__
    of_words = any(name in named_in(mapping) for mapping in WORDS)
    repaints = "mask" in places and not known.keys() & {"mask", BACKGROUND}
    by_class = {
        "image": repaints or (not of_words and _is_of_pictures(name)),
        "video": repaints or name in named_in(AUTO_VIDEO2VIDEO_PIPELINES_MAPPING),
        "mask": repaints,
        "control_image": True,
        "control_video": True,
    }
    if getattr(made, "has_workflows", False):  # a modular one, whose inputs choose what it makes
        by_class = {}
    for field, place in places.items():
        if known[place.argument].default is inspect.Parameter.empty or by_class.get(field):
            yield field


def _is_of_pictures(name: str) -> bool:
    """Return whether a class is one of those that work on a picture."""
    mappings = (AUTO_IMAGE2IMAGE_PIPELINES_MAPPING, AUTO_INPAINT_PIPELINES_MAPPING)
    return any(name in named_in(one) for one in mappings) or any(name in row[1:2] for row in MORE)

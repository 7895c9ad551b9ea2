"""Judges a class of Diffusers by the rules of the diffusion stage: a verdict, and why."""

import inspect
import re
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from pipeline_classes import component_classes  # noqa: E402
from torch.nn import Module  # noqa: E402

from omnistage.server.tasks.audio_task import MEDIA as AUDIO_MEDIA  # noqa: E402
from omnistage.server.tasks.audio_task import GeneratedAudioRequest  # noqa: E402
from omnistage.server.tasks.images.schema import EditRequest, ImageRequest  # noqa: E402
from omnistage.server.tasks.videos.media import FIELDS as VIDEO_MEDIA  # noqa: E402
from omnistage.server.tasks.videos.schema import VideoRequest  # noqa: E402
from omnistage.stages.diffusion.loading.components import denoises  # noqa: E402
from omnistage.stages.diffusion.loading.modular import (  # noqa: E402
    ModularAdapter,
)
from omnistage.stages.diffusion.makes import (  # noqa: E402
    PipelineSignature,
    call_of,
    signature_of,
)
from omnistage.stages.diffusion.request.arguments import (  # noqa: E402
    FIELDS,
    RATES,
    STEPS,
    argument_of,
)
from omnistage.stages.diffusion.request.extra import problem_of  # noqa: E402
from omnistage.stages.diffusion.request.frames import frames_name  # noqa: E402
from omnistage.stages.diffusion.request.places import JOINED  # noqa: E402
from omnistage.stages.diffusion.request.previews import ON_STEP  # noqa: E402
from omnistage.stages.diffusion.request.sound import ARGUMENTS, SWITCHES  # noqa: E402
from omnistage.stages.diffusion.request.task_classes import other_classes  # noqa: E402
from omnistage.stages.diffusion.request.tasks import PipelineTask, arguments_of  # noqa: E402
from omnistage.stages.diffusion.request.videos import COUNTS  # noqa: E402

GIVEN = ("prompt", STEPS, "output_type", "generator", ON_STEP, *COUNTS, *RATES, *FIELDS)
MEDIA = re.compile(r"(^|_)(image|images|video|videos|mask|audio|frames)$|conditions$")
NO_MEDIA = re.compile(r"ip_adapter|attention|latent|num_|embed")
# A mask of latents, and the seconds that say the same of audio.
MASK, MASK_SECONDS = "mask", "mask_start_seconds"
# What classes make of their image or prompt, unless it is given.
MADE_OF_OTHERS = frozenset({"resized_image", "text_images"})
# Classes of which every call fails in their own code, and why.
BROKEN = {
    "ChromaInpaintPipeline": "its call reads `transformer.config.guidance_embeds`, which Chroma's "
    "denoiser has not"
}
GENERATIONS, EDITS, VIDEOS = "/v1/images/generations", "/v1/images/edits", "/v1/videos/sync"
AUDIO = "/v1/audio/generate"
# Fields of media, as the stage names them.
MEDIA_OF: Mapping[str, frozenset[str]] = {
    GENERATIONS: frozenset({"control_image"}),
    EDITS: frozenset({"image", "mask", "control_image", "reference_image"}),
    VIDEOS: frozenset(one.sent_as for one in VIDEO_MEDIA.values()),
    AUDIO: frozenset(AUDIO_MEDIA),
}
ENDPOINTS: Mapping[str, type[Any]] = {
    GENERATIONS: ImageRequest,
    EDITS: EditRequest,
    VIDEOS: VideoRequest,
    AUDIO: GeneratedAudioRequest,
}


@dataclass(frozen=True)
class Judgement:
    """The stage's verdict on one pipeline class."""

    made: Any

    @property
    def name(self) -> str:
        """Returns the class's name."""
        name: str = self.made.__name__
        return name

    @property
    def verdict(self) -> str:
        """Returns `served`, `limited` or `refused`."""
        if self.refusal:
            return "refused"
        return "limited" if self.limits else "served"

    @property
    def makes(self) -> str:
        """Returns the outputs of a call, or the names of what it returns."""
        if self.is_absent:
            return "nothing"
        call = self._call
        try:
            call.check()
        except ValueError:
            return ", ".join(f"`{one}`" for one in sorted(call.returns))
        return f"{call.output} with sound" if call.has_sound else call.output

    @property
    def refusal(self) -> str:
        """Returns why a server with this class does not start or answers nothing; or nothing."""
        if self._obstacle or self.endpoints:
            return self._obstacle
        return "no endpoint brings what it needs"

    @cached_property
    def _obstacle(self) -> str:
        """Returns why no server with this class starts; or nothing."""
        if self.is_absent:
            return self.is_absent
        if self.name in BROKEN:
            return BROKEN[self.name]
        try:
            self._call.check()
        except ValueError as error:
            return str(error).partition(":")[0].removeprefix(f"{self.name} ")
        known = self._known
        is_free = any(one.kind is one.VAR_KEYWORD for one in known.values())
        for name in ("prompt", "output_type"):
            if name not in known and not (is_free and name != "prompt"):
                return f"its call takes no `{name}`"
        missing = [one for one in self._unreached if problem_of(self._instance, one)]
        if missing:
            computed = all("embed" in one for one in missing)
            origin = ", of another pipeline" if computed else ""
            return f"its call requires {listed(missing)}{origin}"
        if not self.denoisers:
            classes = (one for these in component_classes(self.made).values() for one in these)
            has_modules = any(issubclass(one, Module) for one in classes)
            missing_part = "takes a time step" if has_modules else "is a module of torch"
            return f"no component's class {missing_part}"
        return ""

    @cached_property
    def limits(self) -> list[str]:
        """Returns what does not work of a class that is served."""
        known = self._known
        limits = []
        if ON_STEP not in known:
            limits.append("no previews: it takes no callback")
        if self._unreached:
            limits.append(f"`call_defaults` must have {listed(self._unreached)}")
        unreached = [one for one in known if self._is_unreached(one)]
        own = [one for one in unreached if _is_own(known[one])]
        fields = [one for one in unreached if one not in own]
        if own:
            limits.append(f"{listed(own)}: an object of the class's own")
        if fields:
            limits.append(f"no field for {listed(fields)}")
        return limits

    def _is_unreached(self, name: str) -> bool:
        """Return whether an argument is a medium that no field, and no other argument, brings."""
        if not MEDIA.search(name) or NO_MEDIA.search(name) or name in MADE_OF_OTHERS:
            return False
        if name in self._reached or not problem_of(self._instance, name):
            return False
        places = self._tasks[0].places
        is_joined = name in places and places[name].argument in JOINED
        return not is_joined and name not in self._intermediate

    @cached_property
    def _intermediate(self) -> frozenset[str]:
        """Returns what blocks of a modular pipeline make for those behind them."""
        if not issubclass(self.made, ModularAdapter):
            return frozenset()
        return frozenset(self.made.blocks_class().intermediate_output_names)

    @cached_property
    def endpoints(self) -> dict[str, list[str]]:
        """Returns the endpoints that reach the class, each with its fields that are arguments."""
        if self._obstacle:
            return {}
        found = [path for path in self._paths if any(_brings(path, one) for one in self._tasks)]
        heard = [
            one for one, names in ARGUMENTS.items() if not self._known.keys().isdisjoint(names)
        ]
        return {
            path: [
                one
                for one in (*FIELDS, *heard)
                if (argument_of(self._known, one) or one in heard) and _has_field(path, one)
            ]
            for path in found
        }

    @cached_property
    def denoisers(self) -> list[str]:
        """Returns the components whose classes denoise."""
        return sorted(
            name
            for name, classes in component_classes(self.made).items()
            if any(map(denoises, classes))
        )

    @property
    def _paths(self) -> list[str]:
        """Returns the endpoints of what the class makes."""
        return {"image": [GENERATIONS, EDITS], "video": [VIDEOS], "audio": [AUDIO]}[
            self._call.output
        ]

    @cached_property
    def _tasks(self) -> list[PipelineTask]:
        """Returns the tasks of the class, and of others over the same components."""
        given = inspect.signature(self.made.__init__).parameters
        classes = [self.made, *other_classes(self.made, given)]
        return [PipelineTask.of(object.__new__(one)) for one in classes]

    @property
    def _call(self) -> PipelineSignature:
        if hasattr(self.made, "pipeline_signature"):
            return signature_of(self.made)
        call = call_of(self.name)
        assert call is not None, f"{self.name} is not among Diffusers' pipelines"
        return call

    @property
    def _known(self) -> Mapping[str, inspect.Parameter]:
        return arguments_of(self._instance)

    @property
    def _instance(self) -> Any:
        return object.__new__(self.made)

    @property
    def _unreached(self) -> list[str]:
        return [one for one in self._required if one not in self._reached]

    @property
    def _reached(self) -> set[str]:
        brought = {field for path in self._paths for field in MEDIA_OF[path]}
        places = self._tasks[0].places.items()
        seconds = {MASK} if MASK_SECONDS in self._known else set()
        media = {place.argument for field, place in places if field in brought}
        frames = {name} if (name := frames_name(self._known)) else set()
        return {*GIVEN, *SWITCHES, *frames, *seconds, *media}

    @property
    def _required(self) -> list[str]:
        free = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return [
            name
            for name, one in self._known.items()
            if one.default is one.empty and one.kind not in free
        ]

    @property
    def is_absent(self) -> str:
        """Returns why there is nothing to call; or nothing."""
        packages = getattr(self.made, "_backends", None)
        if packages:
            return f"Diffusers needs {listed(packages)} for it, which is not installed"
        if "__call__" not in dir(self.made):
            return "a base class: it has no call"
        return ""


def listed(names: typing.Iterable[str]) -> str:
    return ", ".join(f"`{one}`" for one in names)


def _is_own(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is annotated as a tensor or a dictionary and nothing else."""
    return parameter.annotation in (torch.Tensor, torch.FloatTensor, dict)


def _brings(path: str, task: PipelineTask) -> bool:
    """Return whether an endpoint's requests have what a task needs, and what the endpoint wants."""
    wants = {"image"} if path == EDITS else set()
    return task.needed <= MEDIA_OF[path] and wants <= task.places.keys()


def _has_field(path: str, name: str) -> bool:
    return name in ENDPOINTS[path].model_fields

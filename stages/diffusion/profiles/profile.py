"""A pipeline's profile: what the classes of one model need of their own in this stage."""

import logging
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from torch.nn import Module

from omnistage.connectors.registry import Unusable
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import Family
from omnistage.stages.messages.to_gateway import TOKEN_SIDE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineProfile:
    """One model's own ways; the defaults are what any other pipeline does.

    `denoisers`, `vaes`: names of their classes. By dotted paths of functions that get
    such a module: `fuse` puts kernels into a denoiser that will be compiled on a GPU,
    `attend_by_flash_3` lets a fused one attend by FlashAttention 3, `flatten` lets a VAE compute
    single frames as images; empty: there is none. `text_masks`: how a denoiser's arguments end that
    are masks of texts, which may then be padded. `before_steps`: names of the pipeline's methods
    whose results a preview takes from its request's call. `token_side`: pixels of the side of what
    the denoiser takes as one token.
    """

    name: str
    denoisers: frozenset[str] = frozenset()
    vaes: frozenset[str] = frozenset()
    fuse: str = ""
    attend_by_flash_3: str = ""
    flatten: str = ""
    text_masks: tuple[str, ...] = ("_attention_mask", "_mask")
    before_steps: re.Pattern[str] = re.compile(r"encode_\w+|prepare_(\w+_)?latents")
    token_side: int = TOKEN_SIDE

    def matches(self, made: type) -> bool:
        """Returns whether a class of a pipeline's module is one of the model's."""
        return made.__name__ in self.denoisers | self.vaes


PLAIN = PipelineProfile("plain")


def profile_of(*modules: Module) -> PipelineProfile:
    """Return the profile of the model that one of these modules is of, or the plain one."""
    made = [type(module) for module in modules]
    return next((one for one in all_profiles() if any(map(one.matches, made))), PLAIN)


@cache
def all_profiles() -> tuple[PipelineProfile, ...]:
    """Return the profiles of every installed family by their names, and log which are unusable."""
    found = []
    for name in sorted(FAMILIES.owners(_pipelines)):
        try:
            profile = pkgutil.resolve_name(FAMILIES.part(name, _pipelines))
            if not isinstance(profile, PipelineProfile):
                raise TypeError(f"{profile!r} is not a PipelineProfile")
            found.append(profile)
        except (Unusable, ImportError, AttributeError, TypeError) as error:
            logger.warning("pipelines.%s of a family cannot be used: %s", name, error)
    return tuple(found)


def call(path: str, module: Module) -> None:
    """Call the function of a profile's dotted path with a module."""
    function: Callable[[Module], None] = pkgutil.resolve_name(path)
    function(module)


def _pipelines(family: Family) -> Mapping[str, str]:
    return family.pipelines

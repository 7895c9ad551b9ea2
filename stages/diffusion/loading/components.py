"""Finds the modules of a pipeline that denoise, encode, decode, or just stay."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol, runtime_checkable

import torch
from diffusers import DiffusionPipeline
from torch.nn import Module

from omnistage.stages.diffusion.blocks.compiled import compile_forward
from omnistage.stages.diffusion.blocks.fused import flatten, fuse

logger = logging.getLogger(__name__)

TIMES = frozenset({"timestep", "timesteps", "timestep_ratio", "t", "r", "sigma"})
Names = tuple[str, ...]


@runtime_checkable
class DeclaresRoles(Protocol):
    """A pipeline class that says which of its modules does what, as a graph file may."""

    module_roles: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Roles:
    """Dotted names of modules, as a graph file declares them; a role that is None is found."""

    dit: Names | None = None
    encoder: Names | None = None
    vae: Names | None = None
    resident: Names | None = None

    @classmethod
    def of(cls, declared: object) -> "Roles":
        """The engine argument `modules`; raises ValueError."""
        known = [one.name for one in fields(cls)]
        if not isinstance(declared, Mapping):
            raise ValueError(f"modules: must be a mapping of {', '.join(known)}")
        for role, names in declared.items():
            if role not in known:
                raise ValueError(f"modules: unknown role {role!r}; allowed: {', '.join(known)}")
            if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                raise ValueError(f"modules.{role}: must be a list of dotted names, not {names!r}")
        return cls(**{role: tuple(names) for role, names in declared.items()})

    def completed(self, made: type) -> "Roles":
        """With what a pipeline's class says of roles that are not declared; raises ValueError."""
        said = Roles.of(made.module_roles) if isinstance(made, DeclaresRoles) else Roles()
        names = (one.name for one in fields(self))
        own = {name: getattr(self, name) for name in names}
        return Roles(**{n: getattr(said, n) if o is None else o for n, o in own.items()})

    @property
    def only_dit(self) -> "Roles":
        """With nothing but denoisers."""
        return Roles(self.dit, (), (), ())


@dataclass(frozen=True, slots=True)
class Parts:
    """A pipeline's modules by role and dotted name; each is there once."""

    dit: dict[str, Module] = field(default_factory=dict)
    encoder: dict[str, Module] = field(default_factory=dict)
    vae: dict[str, Module] = field(default_factory=dict)
    resident: dict[str, Module] = field(default_factory=dict)

    @property
    def moved(self) -> dict[str, Module]:
        """Returns the modules that need not be on the device together."""
        return {**self.encoder, **self.dit, **self.vae}

    @classmethod
    def find(cls, pipeline: object, roles: Roles | None = None) -> "Parts":
        """Raises ValueError for a name that is not there and if nothing denoises."""
        parts, taken = cls(), list[Module]()
        roles = (roles or Roles()).completed(type(pipeline))
        for role in (one.name for one in fields(cls)):
            for name in getattr(roles, role) or ():
                module = _resolve(pipeline, name)
                if not isinstance(module, Module):
                    logger.warning("modules.%s: %s is no module: left out", role, name)
                elif not any(module is one for one in taken):
                    taken.append(module)
                    getattr(parts, role)[name] = module
        for name, module, role in _found(pipeline):
            if getattr(roles, role) is None and not any(overlap(module, one) for one in taken):
                taken.append(module)
                getattr(parts, role)[name] = module
        if not parts.dit:
            names = ", ".join(name for name, _ in modules_in(pipeline)) or "none"
            raise ValueError(
                f"{type(pipeline).__name__} has no denoiser that can be found (modules: {names}); "
                "name it in the graph: engine: {modules: {dit: [name]}}"
            )
        return parts


def modules_in(owner: object, prefix: str = "") -> Iterator[tuple[str, Module]]:
    """A pipeline's modules, and those of the pipelines that it is made of, by dotted name."""
    for name, part in _members(owner).items():
        if isinstance(part, DiffusionPipeline):
            yield from modules_in(part, f"{prefix}{name}.")
        elif isinstance(part, Module):
            yield f"{prefix}{name}", part


def _members(owner: object) -> Mapping[str, object]:
    if isinstance(owner, DiffusionPipeline):
        components: Mapping[str, object] = owner.components
        return components
    children = dict(owner.named_children()) if isinstance(owner, Module) else {}
    return {**getattr(owner, "__dict__", {}), **children}


def _found(owner: object) -> Iterator[tuple[str, Module, str]]:
    """Name, module and role of what nobody declared, by the pipeline's own order of offloading."""
    for name, module in modules_in(owner):
        prefix, _, own = name.rpartition(".")
        holder = _resolve(owner, prefix) if prefix else owner
        order = getattr(holder, "model_cpu_offload_seq", None) or ""
        yield name, module, _role(own, module, holder, [one.strip() for one in order.split("->")])


def controls_in(pipeline: object) -> dict[str, Module]:
    """Return a pipeline's modules that run at each step beside its denoiser, by dotted name."""
    return {name: module for name, module in modules_in(pipeline) if _is_control(type(module))}


def _is_control(made: type) -> bool:
    return "controlnet" in made.__name__.lower()


def _role(name: str, module: Module, holder: object, order: list[str]) -> str:
    if _is_control(type(module)):
        return "resident"  # runs at each step, beside the denoiser
    if can_decode(module):
        return "vae"
    if _takes_time(module.forward):
        return "dit"
    if name in getattr(holder, "_exclude_from_cpu_offload", ()):
        return "resident"
    members = _members(holder)
    steps = [
        one
        for one in order
        if isinstance(part := members.get(one), Module) and _role(one, part, holder, []) == "dit"
    ]
    if name in order and steps and order.index(name) > order.index(steps[-1]):
        return "vae"
    return "encoder"


def denoises(made: type) -> bool:
    """Returns whether a module of this class takes a time step, and makes nothing of latents."""
    if not issubclass(made, Module) or can_decode(made):
        return False
    return not _is_control(made) and _takes_time(made.forward)


def can_decode(part: Module | type) -> bool:
    """Returns whether a module, or one of this class, makes something of latents."""
    return callable(getattr(part, "decode", None))


def repeated_blocks(denoiser: Module) -> list[Module]:
    """The blocks that Diffusers' class says are many of a kind; none where it says nothing."""
    names = getattr(denoiser, "_repeated_blocks", None) or ()
    return [one for one in denoiser.modules() if type(one).__name__ in names]


def has_tiles(made: type) -> bool:
    """Returns whether a module of this class can decode in tiles, as Diffusers' VAEs do."""
    return callable(getattr(made, "tiled_decode", None))


def _takes_time(forward: Callable[..., object]) -> bool:
    names = inspect.signature(forward).parameters
    return any(one in TIMES or one.endswith("_timesteps") for one in names)


def _resolve(owner: object, name: str) -> object:
    """Returns what a dotted name stands for; raises ValueError."""
    found = owner
    for part in name.split("."):
        if not hasattr(found, part):
            known = ", ".join(one for one, _ in modules_in(owner)) or "none"
            raise ValueError(f"{type(owner).__name__} has no {name}; its modules: {known}")
        found = getattr(found, part)
    return found


def overlap(one: Module, other: Module) -> bool:
    """Returns whether one is the other, or a part of it."""
    return any(part is one for part in other.modules()) or any(
        part is other for part in one.modules()
    )


def compile_blocks(parts: Parts, device: torch.device, may_choose: bool = True) -> None:
    """Compile the denoisers' repeated blocks at their first use; raises ValueError without any.

    Those that have kernels of our own on the device where they will be get them, and VAEs compute
    single frames as pictures. `may_choose`: nobody chose the attention, so it may be
    FlashAttention 3.
    """
    for name, module in parts.dit.items():
        blocks = repeated_blocks(module)
        if not blocks:
            raise ValueError(f"compile: {name} ({type(module).__name__}) has no repeated blocks")
        fuse(module, device, may_choose)
        for block in blocks:
            compile_forward(block)
    for vae in parts.vae.values():
        flatten(vae)

"""Puts methods of a pipeline's parts through to the engine when a request calls them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps

import torch
from diffusers.image_processor import VaeImageProcessor
from greenlet import getcurrent, greenlet

from omnistage.stages.diffusion.loading.components import Parts, can_decode, modules_in, overlap
from omnistage.stages.diffusion.merging.calls import Target
from omnistage.stages.diffusion.merging.setting import DEFAULT, Setting
from omnistage.stages.diffusion.merging.stopping import Cancellation
from omnistage.stages.diffusion.merging.targets import Component
from omnistage.stages.diffusion.pipeline import Arguments

Wait = Callable[[Target, Sequence[object], Arguments], object]  # answers a request's call

MERGED_METHODS = ("forward", "encode", "decode")
SINGLE_METHODS = ("generate",)
PROCESSOR_METHODS = ("preprocess", "postprocess", "preprocess_video", "postprocess_video")


class RequestGreenlet(greenlet):
    """One request's call of its pipeline. Only calls from such a greenlet are put through."""

    setting: Setting = DEFAULT
    stop: Cancellation


def current_setting() -> Setting:
    """That of the request whose code runs in this thread."""
    current = getcurrent()
    return current.setting if isinstance(current, RequestGreenlet) else DEFAULT


class Switchboard:
    """Replaces methods, on the instances, until it is closed."""

    def __init__(self) -> None:
        self._connected: list[tuple[object, str, object]] = []

    def connect(self, owner: object, method: str, target: Target, wait: Wait) -> None:
        """`wait(target, args, kwargs)` answers requests; others still get the method itself."""
        original = getattr(owner, method)
        self._connected.append((owner, method, vars(owner).get(method)))

        @wraps(original)  # pipelines read signatures
        def put_through(*args: object, **kwargs: object) -> object:
            if isinstance(getcurrent(), RequestGreenlet):
                return wait(target, args, kwargs)
            return original(*args, **kwargs)

        setattr(owner, method, put_through)

    def close(self) -> None:
        """All as it was."""
        for owner, method, own in reversed(self._connected):
            if own is None:
                delattr(owner, method)
            else:
                setattr(owner, method, own)
        self._connected.clear()


def find_denoisers(pipeline: object) -> dict[str, torch.nn.Module]:
    """The components that denoise, undeclared; raises ValueError if none is found."""
    return Parts.find(pipeline).dit


def side_targets(
    pipeline: object, denoisers: Mapping[str, torch.nn.Module]
) -> Iterator[tuple[object, str, Component]]:
    """Returns what encodes and decodes: owner, method, target."""
    for name, part in modules_in(pipeline):
        if any(overlap(part, denoiser) for denoiser in denoisers.values()):
            continue
        decodes = can_decode(part)
        for method in (*MERGED_METHODS, *SINGLE_METHODS):
            if callable(getattr(part, method, None)):
                may_merge = method in MERGED_METHODS
                made = Component(f"{name}.{method}", getattr(part, method), may_merge, decodes)
                yield part, method, made
    for name, part in vars(pipeline).items():
        if isinstance(part, VaeImageProcessor):
            for method in PROCESSOR_METHODS:
                if callable(getattr(part, method, None)):
                    decodes = method.startswith("post")
                    made = Component(f"{name}.{method}", getattr(part, method), False, decodes)
                    yield part, method, made

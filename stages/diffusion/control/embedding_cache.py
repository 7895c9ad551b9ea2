"""Outputs of text encoders, kept for the next request with the same inputs."""

import copy
import hashlib
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import wraps

import torch

from omnistage.stages.diffusion.merging.calls import tensors_in
from omnistage.stages.diffusion.merging.containers import PLAIN
from omnistage.stages.diffusion.pipeline import HasComponents

ENCODER_PREFIX = "text_encoder"


class NotCacheable(Exception):
    """An input that cannot be told from another."""


class EmbeddingCache:
    """Keeps results up to a number of bytes; the one used longest ago goes first.

    A result is given out as a copy: a pipeline may write to it. `variant` says what else than the
    inputs a part's result depends on, its LoRA adapters.
    """

    def __init__(self, max_bytes: int, variant: Callable[[str], Hashable]) -> None:
        self._max_bytes = max_bytes
        self._variant = variant
        self._kept: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()
        self._num_bytes = 0
        self._num_hits = 0
        self._num_misses = 0
        self._lock = threading.Lock()
        self._wrapped: list[tuple[torch.nn.Module, Callable[..., object] | None]] = []

    def install(self, pipeline: HasComponents) -> None:
        """Look up each call of the pipeline's text encoders."""
        for name, part in pipeline.components.items():
            if name.startswith(ENCODER_PREFIX) and isinstance(part, torch.nn.Module):
                self._wrapped.append((part, vars(part).get("forward")))
                part.forward = self._cached(name, part.forward)

    def close(self) -> None:
        """The text encoders are as they were."""
        for part, own in reversed(self._wrapped):
            del part.forward
            if own is not None:
                part.forward = own
        self._wrapped.clear()
        self.clear()

    def _cached(self, name: str, forward: Callable[..., object]) -> Callable[..., object]:
        signature = inspect.signature(forward)

        @wraps(forward)
        def look_up(*args: object, **kwargs: object) -> object:
            arguments = signature.bind(*args, **kwargs).arguments
            try:
                key = name, self._variant(name), fingerprint(arguments)
            except NotCacheable:
                return forward(*args, **kwargs)
            kept = self._get(key)
            if kept is not None:
                return copy.deepcopy(kept)
            made = forward(*args, **kwargs)
            self._keep(key, made)
            return made

        return look_up

    def _get(self, key: Hashable) -> object:
        with self._lock:
            if key not in self._kept:
                self._num_misses += 1
                return None
            self._num_hits += 1
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def _keep(self, key: Hashable, made: object) -> None:
        num_bytes = sum(tensor.nbytes for tensor in tensors_in(made))
        if num_bytes > self._max_bytes:
            return
        mine = copy.deepcopy(made)
        with self._lock:
            self._drop(key)
            self._kept[key] = mine, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        _, num_bytes = self._kept.pop(key, (None, 0))
        self._num_bytes -= num_bytes

    def clear(self) -> None:
        """Forget all results; the counts go on."""
        with self._lock:
            self._kept.clear()
            self._num_bytes = 0

    @property
    def counts(self) -> dict[str, int]:
        """Hits, misses, what is kept."""
        with self._lock:
            return {
                "hits": self._num_hits,
                "misses": self._num_misses,
                "entries": len(self._kept),
                "bytes": self._num_bytes,
                "max_bytes": self._max_bytes,
            }


def fingerprint(value: object) -> Hashable:
    """Equal for equal inputs only; raises NotCacheable for what has hidden parts."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy()
        digest = hashlib.sha256(data.tobytes()).digest()
        return "tensor", tuple(value.shape), value.dtype, value.device, digest
    if isinstance(value, Mapping):
        return tuple((name, fingerprint(item)) for name, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return type(value), tuple(map(fingerprint, value))
    if isinstance(value, PLAIN):
        return type(value), value
    raise NotCacheable

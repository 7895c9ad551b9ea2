"""A VAE's tiled decoding, whose tiles are computed elsewhere: several at a time, one a rank.

Diffusers cuts the latents into tiles, calls the decoder for each and blends the results. What the
decoder is given does not depend on what it made of other tiles. So Diffusers' own method is called
twice, each time with another forward of the decoder: the first notes the calls, and its results
have shapes but no values; the second has the results of the noted calls.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import diffusers
import torch

from omnistage.stages.diffusion.merging.stopping import end_if_stopped

Forward = Callable[..., object]

# Diffusers' classes whose tiles do not depend on each other, and whose decoder keeps nothing from
# one call to the next but what it is given. Tests decode with each of them.
CLASSES = (
    "AutoencoderDC",
    "AutoencoderKL",
    "AutoencoderKLCogVideoX",
    "AutoencoderKLFlux2",
    "AutoencoderKLHunyuanVideo",
    "AutoencoderKLMochi",
    "AutoencoderKLQwenImage",
    "AutoencoderKLWan",
)
MAX_KNOWN = 64  # shapes of latents whose results' shapes are kept


def check_tiles(made: type) -> None:
    """Raise ValueError for a class whose tiles cannot be shared."""
    known = [getattr(diffusers, name).tiled_decode for name in CLASSES if hasattr(diffusers, name)]
    if getattr(made, "tiled_decode", None) not in known:
        raise ValueError(
            f"parallel.vae: it is not known whether tiles of {made.__name__} depend on each other; "
            f"those of {', '.join(CLASSES)} do not"
        )


@dataclass(frozen=True, slots=True)
class FromBefore:
    """Stands for what the decoder gave beside its result in the call before."""


@dataclass(frozen=True, slots=True)
class TileCall:
    """The arguments of a decoder."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]


Tile = list[TileCall]  # several calls, one after another, where frames are decoded in parts


class OwnLists:
    """A decoder writes into the lists that it is given: here into copies, the same for the same."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[object, object]] = {}  # the list is kept, so that its id is

    def own(self, value: object) -> object:
        """The copy of a list; other values as they are."""
        if not isinstance(value, list):
            return value
        return self._copies.setdefault(id(value), (value, list(value)))[1]


def dtype_of(decoder: torch.nn.Module) -> torch.dtype:
    """That of its weights."""
    return next(decoder.parameters()).dtype


def decoded(tile: Tile, forward: Forward) -> list[object]:
    """The result of each call, without what the decoder gave beside it."""
    lists, results, state = OwnLists(), [], None
    for call in tile:
        args = [lists.own(value) for value in call.args]
        kwargs = {
            name: state if isinstance(value, FromBefore) else lists.own(value)
            for name, value in call.kwargs.items()
        }
        result, state = _apart(forward(*args, **kwargs))
        results.append(result)
    return results


def _apart(result: object) -> tuple[object, object]:
    """A result, and what was given beside it for the next call."""
    return result if isinstance(result, tuple) else (result, None)


class _AllNoted(Exception):
    """Ends a tiled decoding whose last call was noted."""


class _Notes:
    """The forward of a decoder that notes its calls."""

    def __init__(self, outline: Forward, known: Sequence[object] | None) -> None:
        """`outline`: the decoder on the meta device. `known`: its results, if it was called."""
        self.tiles: list[Tile] = []
        self.results: list[object] = []
        self._outline, self._known = outline, known
        self._lists = OwnLists()
        self._before: TileCall | None = None

    def forward(self, *args: object, **kwargs: object) -> object:
        """Note it; raise _AllNoted if it is known to be the last one."""
        call = TileCall(args, kwargs)
        noted = TileCall(args, {n: self._noted(value) for n, value in kwargs.items()})
        if self._goes_on(noted):
            self.tiles[-1].append(noted)
        else:
            self.tiles.append([noted])
        self._before = noted
        number = len(self.results)
        self.results.append(self._outlined(call) if self._known is None else self._known[number])
        if self._known is not None and number + 1 == len(self._known):
            raise _AllNoted
        return self.results[-1]

    def _noted(self, value: object) -> object:
        """A value of a call, or the sign that the call before gives it."""
        state = _apart(self.results[-1])[1] if self.results else None
        return FromBefore() if state is not None and value is state else value

    def _goes_on(self, call: TileCall) -> bool:
        """Returns whether it is of the same tile as the one before: it has something from there."""
        if self._before is None:
            return False
        lists = [value for value in self._before.kwargs.values() if isinstance(value, list)]
        return any(
            isinstance(value, FromBefore) or any(value is one for one in lists)
            for value in call.kwargs.values()
        )

    def _outlined(self, call: TileCall) -> object:
        args = [self._as_outline(value) for value in call.args]
        kwargs = {name: self._as_outline(value) for name, value in call.kwargs.items()}
        return self._outline(*args, **kwargs)

    def _as_outline(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return self._lists.own(value)
        dtype = torch.get_default_dtype() if value.is_floating_point() else value.dtype
        return torch.empty(value.shape, dtype=dtype, device="meta")


class SharedTiles:
    """One VAE's tiled decoding, with its tiles computed by others."""

    def __init__(
        self, vae: Any, num_at_once: int, compute: Callable[[Sequence[Tile]], list[Any]]
    ) -> None:
        """`compute`: as many tiles as go at once, or fewer; each tile's `decoded`, in order."""
        self._vae = vae
        self._decoder: torch.nn.Module = vae.decoder
        self._tiled_decode: Forward = vae.tiled_decode
        self._num_at_once = num_at_once
        self._compute = compute
        with torch.device("meta"):
            self._outline = type(vae).from_config(vae.config).decoder.eval()
        self._known: dict[Hashable, list[object]] = {}
        self.num_tiles = 0  # that were computed

    def install(self) -> None:
        """Let the VAE decode in tiles, by this."""
        self._vae.enable_tiling()
        self._vae.tiled_decode = self.decode

    def decode(self, *args: object, **kwargs: object) -> object:
        """In place of `tiled_decode`."""
        notes = self._noted(args, kwargs)
        made: list[object] = []
        for start in range(0, len(notes.tiles), self._num_at_once):
            end_if_stopped()
            for results in self._compute(notes.tiles[start : start + self._num_at_once]):
                made.extend(results)
                self.num_tiles += 1
        answers = iter(made)
        has_state = isinstance(notes.results[0], tuple)

        def answer(*_: object, **__: object) -> object:
            return (next(answers), None) if has_state else next(answers)

        with self._forward(answer):
            return self._tiled_decode(*args, **kwargs)

    def _noted(self, args: Sequence[object], kwargs: Mapping[str, object]) -> _Notes:
        key = self._key(args, kwargs)
        notes = _Notes(self._outline, self._known.get(key))
        try:
            with self._forward(notes.forward):
                self._tiled_decode(*args, **kwargs)
        except _AllNoted:
            return notes
        if len(self._known) == MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = notes.results
        return notes

    def _key(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
        """Returns what the shapes of all results depend on."""
        values = [*args, *(kwargs[name] for name in sorted(kwargs))]
        shapes = [one.shape if isinstance(one, torch.Tensor) else repr(one) for one in values]
        sizes = [f"{name}={one}" for name, one in vars(self._vae).items() if "tile" in name]
        return (*shapes, *sizes)

    @contextmanager
    def _forward(self, forward: Forward) -> Iterator[None]:
        """Inside, the decoder has this one."""
        before = self._decoder.forward
        self._decoder.forward = forward
        try:
            yield
        finally:
            self._decoder.forward = before

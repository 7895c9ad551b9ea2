"""One rank: it holds denoisers and executes the orders of rank 0, call by call."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnistage.stages.diffusion.loading.adapter_weights import AdapterWeights
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions
from omnistage.stages.diffusion.loading.weights import Weights
from omnistage.stages.diffusion.merging.setting import Scales
from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.pipeline import HasComponents
from omnistage.stages.diffusion.ranks.group import RankPlace
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.orders import Call
from omnistage.stages.diffusion.ranks.parallelism import spread
from omnistage.stages.diffusion.ranks.sharding import ShardedDenoiser, shard_mesh_of
from omnistage.stages.diffusion.ranks.tiles import Tile, decoded, dtype_of
from omnistage.stages.worker.extension import extension_of

logger = logging.getLogger(__name__)

# A rank that failed alone leaves the others of its group in a collective for ever; one that has
# heard nothing for so long after it failed ends, and its stage with it.
ALONE_S = 20.0


@dataclass(frozen=True, slots=True)
class RankSpec:
    """The arguments of a rank's process."""

    place: RankPlace
    model: str
    stage: str
    engine: Mapping[str, object]  # the stage's arguments of LoadOptions and RankOptions
    alone_s: float = ALONE_S

    @property
    def load_options(self) -> LoadOptions:
        """Returns what to load, and as what."""
        return LoadOptions.of(self.engine)

    @property
    def has_tiles(self) -> bool:
        """Returns whether it computes tiles of decodings."""
        return self.place.rank < self.rank_options.vae > 1

    @property
    def rank_options(self) -> RankOptions:
        """How denoisers are spread."""
        return RankOptions.of(self.engine)


class RankWorker:
    """A rank's denoisers, and VAEs whose tiles it shares.

    Its public methods are those that rank 0 may have called.

    A user's extension is mixed in: it finds `rank`, `pipeline`, `denoisers` and `device` here.
    """

    def __init__(self, spec: RankSpec, loaded: LoadedPipeline) -> None:
        self.rank = spec.place.rank
        self.pipeline = loaded.pipeline
        self.denoisers = loaded.parts.dit
        self.device = loaded.device
        self._spec = spec
        self._adapters = AdapterWeights(self.pipeline)
        self._weights: Weights | None = None
        self._sharded: dict[str, ShardedDenoiser] = {}
        self._forwards = self._now()

    def _now(self) -> dict[str, Callable[..., object]]:
        forwards: dict[str, Callable[..., object]] = {
            name: one.forward for name, one in self.denoisers.items()
        }
        for name, sharded in self._sharded.items():
            sharded.whole = forwards[name]
            forwards[name] = sharded.call
        return forwards

    def shard(self) -> None:
        """Leave each rank its part of the denoisers' weights; all ranks do it at once."""
        mesh = shard_mesh_of(self._spec.rank_options, self.device)
        for name, denoiser in self.denoisers.items():
            self._sharded[name] = ShardedDenoiser(denoiser, mesh)
        self._forwards = self._now()

    def spread(self) -> None:
        """Spread the denoisers' calls over the ranks of each group; all ranks do it at once."""
        options = self._spec.rank_options
        if options.plan:
            spread(self.denoisers.values(), options, self.device)
        self._forwards = self._now()

    def run(self, name: str, modes: TorchModes, calls: Sequence[Call]) -> object:
        """A forward: the call of this rank's group, if it has one."""
        group = self._spec.place.group
        if group >= len(calls):
            return None
        args, kwargs = calls[group]
        with modes.held():
            result = self._forwards[name](*args, **kwargs)
        return result if self._spec.place.is_first else None

    def decode_tile(
        self, name: str, modes: TorchModes, dtype: torch.dtype, tiles: Sequence[Tile]
    ) -> list[object] | None:
        """This rank's tile of a decoding, if it has one. A pipeline may change the VAE's dtype."""
        if self.rank >= len(tiles):
            return None
        decoder: torch.nn.Module = getattr(self.pipeline, name).decoder
        if dtype_of(decoder) != dtype:
            decoder.to(dtype)
        with modes.held():
            return decoded(tiles[self.rank], decoder)

    def go_on(self) -> None:
        """After a call that failed on every rank."""

    def load_adapter(self, key: str, path: str, weight_name: str | None) -> None:
        """Put a LoRA in."""
        self._adapters.load(key, path, weight_name)

    def delete_adapter(self, key: str) -> None:
        """Take one out, if it is in."""
        self._adapters.delete(key)

    def put_adapters(self, name: str, scales: Scales) -> None:
        """Let a denoiser work with these LoRAs and no other."""
        self._adapters.put(name, scales)

    def sleep(self, level: int, tags: Collection[str] | None) -> None:
        """Take the denoisers' weights off the device."""
        self._own_weights.sleep(level, self._own(tags))

    def wake(self, tags: Collection[str] | None) -> None:
        """Put them back."""
        self._own_weights.wake(self._own(tags))

    def prepare_weights(self, folder: str | None) -> None:
        """Read and check other weights for the denoisers."""
        self._own_weights.prepare(folder)

    def exchange_weights(self) -> None:
        """Put them in."""
        self._own_weights.exchange()

    def forget_weights(self) -> None:
        """Drop what was prepared."""
        self._own_weights.forget()

    @property
    def _own_weights(self) -> Weights:
        if self._weights is None:
            self._weights = Weights(self.pipeline, self._read, is_whole=False)
        return self._weights

    def _own(self, tags: Collection[str] | None) -> Collection[str] | None:
        """The tags of parts that are here."""
        if tags is None or "weights" in tags:
            return None
        return [tag for tag in tags if getattr(self.pipeline, tag, None) is not None]

    def _read(self, folder: str | None) -> HasComponents:
        spec = self._spec
        return spec.load_options.read(
            folder or spec.model, stage=spec.stage, only_denoisers=True, has_tiled=spec.has_tiles
        )


def made_worker(spec: RankSpec, loaded: LoadedPipeline) -> RankWorker:
    """With the methods of the user's extension."""
    extension = extension_of(spec.rank_options.worker_extension_cls)
    if extension is None:
        return RankWorker(spec, loaded)
    made: Any = type(f"{extension.__name__}RankWorker", (extension, RankWorker), {})
    worker: RankWorker = made(spec, loaded)
    return worker

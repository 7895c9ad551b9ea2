"""One rank: it holds denoisers and executes the orders of rank 0, call by call."""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from omnistage.stages.device.compiling import count_compiles
from omnistage.stages.device.devices import device_of
from omnistage.stages.device.memory import is_out_of_memory, release_cached
from omnistage.stages.diffusion.loading.adapter_weights import AdapterWeights
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions
from omnistage.stages.diffusion.loading.weights import Weights
from omnistage.stages.diffusion.merging.setting import Scales
from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.pipeline import HasComponents
from omnistage.stages.diffusion.ranks.group import RankPlace, device_of_rank, joined_group
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.parallelism import spread
from omnistage.stages.diffusion.ranks.sharding import ShardedDenoiser, shard_mesh_of
from omnistage.stages.diffusion.ranks.tiles import Tile, decoded, dtype_of
from omnistage.stages.diffusion.ranks.wire import (
    Header,
    as_bytes,
    from_bytes,
    pack,
    room_for,
    unpack,
)
from omnistage.stages.messages.log_bound import LOG_LEVEL, bound_logs
from omnistage.stages.worker.extension import extension_of
from omnistage.stages.worker.process.garbage import end_imports
from omnistage.stages.worker.process.lifetime import end_with_parent

logger = logging.getLogger(__name__)

# A rank that failed alone leaves the others of its group in a collective for ever; one that has
# heard nothing for so long after it failed ends, and its stage with it.
ALONE_S = 20.0
FAILED_ALONE = 71  # our exit code
COLLECTIVE = ("shard", "spread", "run")  # methods in which ranks of a group wait for each other

Call = tuple[tuple[object, ...], Mapping[str, object]]  # arguments as they are given


class RankOrder(msgspec.Struct, frozen=True):
    """An order of rank 0: a method of RankWorker and its arguments. Without a method: end."""

    number: int
    method: str = ""
    arguments: Header | None = None
    wants_reply: bool = True


class Reply(msgspec.Struct, frozen=True):
    """The answer to an order; its tensors follow by the group."""

    number: int
    result: Header | None = None
    error: str = ""
    is_out_of_memory: bool = False


ORDERS = msgspec.msgpack.Decoder(RankOrder)
REPLIES = msgspec.msgpack.Decoder(Reply)


def tell(pipe: Connection, message: RankOrder | Reply) -> None:
    """Send it by a pipe. Raises OSError if nobody is there."""
    pipe.send_bytes(msgspec.msgpack.encode(message))


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


# The process of a rank other than 0


def worker_main(spec: RankSpec, pipe: Connection) -> None:
    """Load, say so on the pipe, obey until told to end or until rank 0 is gone."""
    end_with_parent()
    end_imports()
    count_compiles()
    bound_logs()
    logging.basicConfig(
        level=os.environ.get(LOG_LEVEL, "INFO"),
        format=f"%(levelname)s rank {spec.place.rank}: %(message)s",
    )
    device = device_of_rank(spec.place.rank, device_of(spec.load_options.device))
    with joined_group(spec.place, device):
        worker = _loaded(spec, pipe, device)
        if worker is not None:
            _obey(worker, pipe, device, spec)


def _loaded(spec: RankSpec, pipe: Connection, device: torch.device) -> RankWorker | None:
    """The worker; None: it could not be made, which was told."""
    try:
        options = spec.load_options
        loaded = options.load_denoisers(spec.model, device, spec.stage, spec.has_tiles)
        worker = made_worker(spec, loaded)
    except Exception as error:
        logger.exception("it cannot start")
        tell(pipe, Reply(0, error=_told(error)))
        pipe.poll(None)  # until rank 0 has read it and ends us
        return None
    tell(pipe, Reply(0))
    return worker


@torch.inference_mode()
def _obey(worker: RankWorker, pipe: Connection, device: torch.device, spec: RankSpec) -> None:
    while True:
        try:
            order = ORDERS.decode(pipe.recv_bytes())
        except EOFError:  # rank 0 has ended
            return
        if order.arguments is None:
            return
        reply, flat = execute(worker, order, order.arguments, device)
        tell(pipe, reply)
        if flat is not None:
            dist.send(flat, 0)
        may_be_waited_for = order.method in COLLECTIVE and spec.place.group_size > 1
        if reply.error and may_be_waited_for and not pipe.poll(spec.alone_s):
            logger.error("a call failed here and nowhere else: %s", reply.error)
            spec.place.failure_file.write_text(reply.error)
            os._exit(FAILED_ALONE)


def execute(
    worker: RankWorker, order: RankOrder, header: Header, device: torch.device
) -> tuple[Reply, torch.Tensor | None]:
    """Returns what an order comes to, and the tensors of its result as bytes, if it has any."""
    flat = room_for(header, device)
    if header.places:
        dist.broadcast(flat, 0)
    try:
        arguments = unpack(header, from_bytes(header, flat))
        assert isinstance(arguments, tuple), "an order without a tuple of arguments"
        result = partial(getattr(worker, order.method), *arguments)()
        if not order.wants_reply:
            result = None
        packed, tensors = pack(result, "result")
        made = as_bytes(packed, tensors, device) if packed.places else None
        return Reply(order.number, packed), made
    except Exception as error:  # noqa: BLE001 - it is told where the order came from
        is_memory = is_out_of_memory(error)
        reply = Reply(order.number, None, _told(error), is_memory)
    if is_memory:
        release_cached()
    return reply, None


def _told(error: Exception) -> str:
    """In UTF-8, which a file's name in an error may not be."""
    return f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()

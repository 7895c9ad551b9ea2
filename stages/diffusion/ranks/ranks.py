"""All ranks of a stage's denoisers, seen from rank 0, which is the engine's own process.

The pipeline, its schedulers, encoders and decoders are only here. The other ranks mirror the calls
of the denoisers: each call's arguments go to all, all compute it in lockstep, and the result that
is used is ours, or that of the rank which computed another call at the same time.
"""

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, wraps
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from omnistage.stages.device.devices import device_of
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions
from omnistage.stages.diffusion.merging.calls import is_close, nested
from omnistage.stages.diffusion.merging.learning import SeenCall
from omnistage.stages.diffusion.merging.stopping import stoppable
from omnistage.stages.diffusion.merging.targets import without_frames
from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.ranks.group import RankPlace, device_of_rank, joined_group
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.parallelism import no_plan
from omnistage.stages.diffusion.ranks.sharding import names_blocks, no_blocks
from omnistage.stages.diffusion.ranks.tiles import SharedTiles, Tile, check_tiles, dtype_of
from omnistage.stages.diffusion.ranks.wire import (
    Header,
    as_bytes,
    from_bytes,
    pack,
    room_for,
    unpack,
)
from omnistage.stages.diffusion.ranks.worker import (
    ALONE_S,
    REPLIES,
    Call,
    RankOrder,
    RankSpec,
    RankWorker,
    Reply,
    made_worker,
    tell,
    worker_main,
)
from omnistage.stages.worker.extension import extension_of
from omnistage.stages.worker.process.engine_processes import ENGINE_DIED
from omnistage.stages.worker.start_error import tell_engines_failure

logger = logging.getLogger(__name__)

END_S = 5.0


class RankError(RuntimeError):
    """An error of a rank, which it names."""


def end_stage(problem: str) -> None:
    """Ranks have ended or disagree: end at once, so that the server starts the stage again."""
    logger.error("%s", problem)
    tell_engines_failure(RankError(problem))
    os._exit(ENGINE_DIED)


def check_ranks(model: str, load: LoadOptions, options: RankOptions) -> None:
    """Before weights load: raise ValueError if there are too few GPUs for all ranks.

    Or if a denoiser's class cannot be spread like that.
    """
    num_gpus = torch.cuda.device_count()
    if device_of(load.device).type == "cuda" and num_gpus < options.size:
        raise ValueError(f"its engine has {options.size} ranks, a GPU each; CUDA has {num_gpus}")
    if options.vae > 1:
        check_vaes(load.tiled_in(load.folder_of(model)))
    if not options.plan and options.shard == 1:
        return
    for made in load.denoisers_in(load.folder_of(model)).values():
        if options.plan and getattr(made, options.plan, None) is None:
            raise ValueError(no_plan(made.__name__, options))
        if options.shard > 1 and not names_blocks(made):
            raise ValueError(no_blocks(made))


def check_vaes(tiled: Mapping[str, type]) -> None:
    """Raise ValueError if there is no VAE with tiles, or one whose tiles cannot be shared."""
    if not tiled:
        raise ValueError("parallel.vae: the pipeline has no VAE that decodes in tiles")
    for made in tiled.values():
        check_tiles(made)


class Ranks:
    """Starts the other ranks, has all of them called, and ends them. One order at a time."""

    def __init__(
        self,
        model: str,
        stage: str,
        engine: Mapping[str, object],
        on_failure: Callable[[str], None] = end_stage,
        alone_s: float = ALONE_S,
    ) -> None:
        """The ranks begin to load at once, while we do: `join` them. `engine`: as RankSpec's.

        `on_failure` is called when a rank has died or ranks disagree, from any thread. A rank that
        has failed alone in its group ends after `alone_s`; where we have failed, the others are in
        a collective without us if they have said nothing after half of it.
        """
        self._options = RankOptions.of(engine)
        self._on_failure = on_failure
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        group_size = self._options.group_size
        place = RankPlace(0, self._options.size, group_size, str(self._folder / "store"))
        self._spec = RankSpec(place, model, stage, dict(engine), alone_s)
        self._pipes: dict[int, Connection] = {}
        self.processes: dict[int, SpawnProcess] = {}
        self._lock = threading.RLock()
        self._number = 0
        self._runs: set[int] = set()  # orders to call a denoiser that not all have replied to
        self._heard: dict[int, int] = {}  # each rank's last reply
        self.denoisers: Mapping[str, torch.nn.Module] = {}
        self._wholes: dict[str, Callable[..., object]] = {}
        self._is_closed = threading.Event()
        self._stack = ExitStack()
        self.num_calls = 0
        self.tiles: dict[str, SharedTiles] = {}  # of each VAE
        for rank in range(1, self._options.size):
            self._start(rank)
        self._watcher = threading.Thread(target=self._watch, name="omnistage-ranks", daemon=True)
        self._watcher.start()

    def _start(self, rank: int) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        spec = replace(self._spec, place=replace(self._spec.place, rank=rank))
        process = context.Process(
            target=worker_main, args=(spec, theirs), name=f"rank-{rank}", daemon=True
        )
        process.start()
        theirs.close()
        self._pipes[rank], self.processes[rank] = ours, process

    def _watch(self) -> None:
        sentinels: dict[Any, int] = {one.sentinel: rank for rank, one in self.processes.items()}
        while sentinels and not self._is_closed.is_set():
            for sentinel in wait(list(sentinels), 0.2):
                rank = sentinels.pop(sentinel)
                if not self._is_closed.is_set():
                    self._on_failure(self._death(rank))

    def _death(self, rank: int) -> str:
        process = self.processes[rank]
        process.join()
        told = replace(self._spec.place, rank=rank).failure_file
        why = f": {told.read_text()}" if told.exists() else ""
        return f"rank {rank} has died (exit code {process.exitcode}){why}"

    @property
    def size(self) -> int:
        """Ours included."""
        return self._options.size

    @property
    def num_groups(self) -> int:
        """How many calls can be computed at the same time."""
        return self._options.guidance_ranks

    @property
    def is_tensor_parallel(self) -> bool:
        """Returns whether Diffusers has cut each weight by its plan."""
        return self._options.tensor > 1

    @property
    def extension(self) -> type | None:
        """The user's class of more methods."""
        return extension_of(self._options.worker_extension_cls)

    def meet(self) -> None:
        """Make the process group; it is there when all ranks have come as far."""
        if self.size > 1:
            device = device_of_rank(0, device_of(self._spec.load_options.device))
            self._stack.enter_context(joined_group(self._spec.place, device))

    def shard(self, loaded: LoadedPipeline) -> None:
        """Before `join`, if weights are to be in parts: wait for the ranks, and leave each its own.

        From then on each call of a denoiser is put through to all, which compute it alike.
        """
        if self._options.shard > 1:
            self._await(loaded)
            self.rpc("shard")
            self._mirror()

    def join(self, loaded: LoadedPipeline, seen: Mapping[str, SeenCall]) -> None:
        """Wait for the ranks, spread the denoisers, and put their calls through to all.

        `seen`: a call of each, made before. Raises ValueError if a denoiser cannot be spread, or
        if one then comes to another result: one whose attention a plan does not reach computes
        nonsense in silence. RankError: a rank could not start.
        """
        if not self._wholes:
            self._await(loaded)
        if self.size == 1:
            return
        for name, denoiser in self.denoisers.items():
            denoiser.forward = self._wholes[name]
        self.rpc("spread")
        for name, call in seen.items():
            self._compare(name, call, loaded)
        self._mirror()

    def _await(self, loaded: LoadedPipeline) -> None:
        self._device = loaded.device
        self.denoisers = loaded.parts.dit
        self._wholes = {name: one.forward for name, one in self.denoisers.items()}
        self._worker: RankWorker = made_worker(self._spec, loaded)
        for rank in self._pipes:
            reply = self._received(rank, 0, None)
            if reply is not None and reply.error:
                raise RankError(f"rank {rank}: {reply.error}")

    def _mirror(self) -> None:
        for name, denoiser in self.denoisers.items():
            denoiser.forward = self._mirrored(name, self._wholes[name])

    def share_tiles(self, loaded: LoadedPipeline) -> None:
        """After `join`: let VAEs decode in tiles, and the first ranks share these."""
        if self._options.vae == 1:
            return
        options, spec = self._spec.load_options, self._spec
        for name in options.tiled_in(options.folder_of(spec.model)):
            vae = getattr(loaded.pipeline, name)
            self.tiles[name] = SharedTiles(vae, self._options.vae, partial(self.decode_tiles, name))
            self.tiles[name].install()

    def _compare(self, name: str, seen: SeenCall, loaded: LoadedPipeline) -> None:
        call: Call = ((), nested(seen.arguments))
        kind = type(self.denoisers[name]).__name__
        try:
            results = self.run(name, [call] * self.num_groups)
        except Exception as error:
            raise ValueError(f"parallel: {kind} over {self.size} ranks: {error}") from error
        for result in results:
            if not is_close(seen.result, result):
                message = f"{kind} comes to another result over {self.size} ranks than alone"
                if self._spec.load_options.load_format != "dummy":
                    raise ValueError(f"parallel: {message}; take it out of the graph")
                logger.warning("%s; dummy weights amplify rounding", message)

    def _mirrored(self, name: str, whole: Callable[..., object]) -> Callable[..., object]:
        @wraps(whole)  # who looks for a denoiser reads its signature
        def forward(*args: object, **kwargs: object) -> object:
            return self.run(name, [(args, kwargs)])[0]

        return forward

    # Calls

    def run(self, name: str, calls: Sequence[Call]) -> list[object]:
        """A denoiser's forwards, at most one for each group; the results in the same order.

        An error of ours is raised as it is, one of another rank as RankError. Nobody stops in the
        middle: the others would wait for ever.
        """
        with self._lock, stoppable(()):
            self.num_calls += 1
            arguments = name, TorchModes.now(), list(calls)
            order = self._send("run", arguments, True)
            last = min((self._heard.get(rank, 0) for rank in self._pipes), default=0)
            self._runs = {order.number, *(one for one in self._runs if one > last)}
            try:
                own = self._worker.run(*arguments)
            except Exception as error:  # noqa: BLE001 - raised below, once all are out of it
                failure = without_frames(error)
            else:
                firsts = [group * self._options.group_size for group in range(1, len(calls))]
                replies = [self._reply_of(rank, order.number) for rank in firsts]
                return self._unless_failed(firsts, [own, *replies])
            self._settle(order.number)
            raise failure

    def decode_tiles(self, name: str, tiles: Sequence[Tile]) -> list[object]:
        """Tiles of one decoding, at most one for each rank that shares them; results in order.

        Errors are as those of `run`. Here no rank waits for another one.
        """
        with self._lock, stoppable(()):
            dtype = dtype_of(getattr(self._worker.pipeline, name).decoder)
            arguments = name, TorchModes.now(), dtype, list(tiles)
            order = self._send("decode_tile", arguments, True)
            others = range(1, len(tiles))
            own: list[object] | Exception | None
            try:
                own = self._worker.decode_tile(*arguments)
            except Exception as error:  # noqa: BLE001 - raised below, once all have answered
                own = without_frames(error)
            replies = [self._reply_of(rank, order.number) for rank in others]
            if isinstance(own, Exception):
                raise own
            return self._unless_failed(others, [own, *replies])

    def _unless_failed(self, ranks: Sequence[int], results: list[object]) -> list[object]:
        for rank, result in zip(ranks, results[1:], strict=True):
            if isinstance(result, Reply):
                self._settle(result.number)
                message = f"rank {rank}: {result.error}"
                raise (
                    torch.OutOfMemoryError(message)
                    if result.is_out_of_memory
                    else RankError(message)
                )
        return results

    def _settle(self, number: int) -> None:
        """After a call that failed: all ranks are out of it, or the stage ends."""
        self._runs.discard(number)
        for rank in self._pipes:
            if self._heard.get(rank, 0) >= number:
                continue
            is_with_us = rank < self._options.group_size
            reply = self._received(rank, number, self._spec.alone_s / 2 if is_with_us else None)
            if reply is None:
                self._fail(f"a call failed, but not on rank {rank}, which now waits for ever")
            elif reply.result is not None:  # its tensors are on their way
                self._with_tensors(rank, reply.result)
        self.others("go_on")

    def rpc(self, method: str, *args: object, reply: bool = True, from_all: bool = False) -> object:
        """A method on all ranks at once, between two steps: rank 0's result, or a list of all.

        Without a reply nobody waits for the others. An error of any rank is everyone's: RankError.
        """
        with self._lock:
            order = self._send(method, args, reply and from_all)
            failed = []
            own: object = None
            try:
                own = getattr(self._worker, method)(*args)
            except Exception as error:
                logger.exception("rank 0: %s failed", method)
                failed.append(f"rank 0: {type(error).__name__}: {error}")
            if not reply and not failed:
                return None
            found = [self._reply_of(rank, order.number) for rank in self._pipes]
            for rank, one in zip(self._pipes, found, strict=True):
                if isinstance(one, Reply):
                    failed.append(f"rank {rank}: {one.error}")
            if failed:
                raise RankError("; ".join(failed))
            return [own, *found] if from_all else own

    def others(self, method: str, *args: object) -> None:
        """A method on all ranks but ours, when ours is done; RankError."""
        with self._lock:
            order = self._send(method, args, False)
            for rank in self._pipes:
                answer = self._reply_of(rank, order.number)
                if isinstance(answer, Reply):
                    raise RankError(f"rank {rank}: {answer.error}")

    def follow(self, method: str, *args: object) -> None:
        """Repeats the order that rank 0 has executed: a rank that cannot is no copy any more."""
        try:
            self.others(method, *args)
        except RankError as error:
            self._fail(str(error))
            raise

    def _fail(self, problem: str) -> NoReturn:
        self._on_failure(problem)
        raise RankError(problem)

    def _send(self, method: str, args: Sequence[object], wants_result: bool) -> RankOrder:
        """Send an order to all; nothing has left if its arguments cannot be sent."""
        header, tensors = pack(args, "arguments")
        has_tensors = header.places and self._pipes
        flat = as_bytes(header, tensors, self._device) if has_tensors else None
        self._number += 1
        order = RankOrder(self._number, method, header, wants_result)
        for rank in self._pipes:
            self._drain(rank)
        self._tell(order)
        if flat is not None:
            dist.broadcast(flat, 0)
        return order

    def _tell(self, order: RankOrder) -> None:
        for rank, pipe in self._pipes.items():
            try:
                tell(pipe, order)
            except OSError as error:
                raise self._died(rank) from error

    def _reply_of(self, rank: int, number: int) -> object:
        """The result of one rank; of one that failed its reply."""
        reply = self._received(rank, number, None)
        if reply is None or reply.result is None:
            return reply
        return self._with_tensors(rank, reply.result)

    def _with_tensors(self, rank: int, header: Header) -> object:
        try:
            flat = room_for(header, self._device)
        except RuntimeError as error:  # the rank sends them, and they cannot be taken
            self._fail(f"there is no room for a result of rank {rank}: {error}")
        if header.places:
            dist.recv(flat, rank)
        return unpack(header, from_bytes(header, flat))

    def _received(self, rank: int, number: int, timeout_s: float | None) -> Reply | None:
        """The reply of one rank to an order; None: it has said nothing for so long."""
        while True:
            reply = self._next_reply(rank, timeout_s)
            if reply is None or reply.number >= number:
                return reply
            self._check_unheard(rank, reply)

    def _drain(self, rank: int) -> None:
        """Replies that nobody waited for: they must not fill the pipe."""
        while (reply := self._next_reply(rank, 0)) is not None:
            self._check_unheard(rank, reply)

    def _check_unheard(self, rank: int, reply: Reply) -> None:
        """End the stage if a call failed there and not here: devices wait for that rank."""
        if reply.error and reply.number in self._runs:
            self._runs.discard(reply.number)
            self._fail(f"rank {rank}: a call failed there alone: {reply.error}")

    def _next_reply(self, rank: int, timeout_s: float | None) -> Reply | None:
        try:
            if not self._pipes[rank].poll(timeout_s):
                return None
            reply = REPLIES.decode(self._pipes[rank].recv_bytes())
        except (EOFError, OSError) as error:
            raise self._died(rank) from error
        self._heard[rank] = reply.number
        if reply.error:
            logger.error("rank %d: %s", rank, reply.error)
        return reply

    def _died(self, rank: int) -> RankError:
        return RankError(f"rank {rank} has died")

    def close(self) -> None:
        """End the ranks; the denoisers are not what they were."""
        self._is_closed.set()
        for pipe in self._pipes.values():
            try:
                tell(pipe, RankOrder(self._number + 1))
            except OSError:
                continue
        self._stack.close()
        for process in self.processes.values():
            process.join(END_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._watcher.join()
        for rank, pipe in self._pipes.items():
            pipe.close()
            self.processes[rank].close()
        shutil.rmtree(self._folder, ignore_errors=True)

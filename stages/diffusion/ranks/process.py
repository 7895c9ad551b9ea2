"""The process of a rank other than 0: it loads, says so, and obeys."""

import logging
import os
from functools import partial
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from omnistage.stages.device.compiling import count_compiles
from omnistage.stages.device.devices import device_of
from omnistage.stages.device.memory import is_out_of_memory, release_cached
from omnistage.stages.diffusion.ranks.group import device_of_rank, joined_group
from omnistage.stages.diffusion.ranks.orders import ORDERS, RankOrder, Reply, tell
from omnistage.stages.diffusion.ranks.wire import (
    Header,
    as_bytes,
    from_bytes,
    pack,
    room_for,
    unpack,
)
from omnistage.stages.diffusion.ranks.worker import RankSpec, RankWorker, made_worker
from omnistage.stages.messages.log_bound import LOG_LEVEL, bound_logs
from omnistage.stages.worker.process.garbage import end_imports
from omnistage.stages.worker.process.lifetime import end_with_parent

logger = logging.getLogger(__name__)

FAILED_ALONE = 71  # our exit code
COLLECTIVE = ("shard", "spread", "run")  # methods in which ranks of a group wait for each other


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

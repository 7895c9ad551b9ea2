"""Which GPUs and which port each cell gets."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omnistage.stage_configs.gpus import used_gpus
from omnistage.stage_configs.graph import StageGraph

HOST = "127.0.0.1"  # of the cells: only the balancer asks them
LAST_PORT = 65535


class NoRoom(ValueError):
    """The machine cannot hold the cells; the message says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One server: its number from 0, its port, and CUDA's names of the GPUs that it sees."""

    number: int
    port: int
    gpus: tuple[str, ...]

    @property
    def name(self) -> str:
        """What logs and the balancer call it."""
        return f"cell{self.number}"

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://{HOST}:{self.port}"


def gpu_share(num_cells: int, gpus: Sequence[str]) -> Sequence[str]:
    """The GPUs that one cell may use at most: by them its graph is chosen.

    Where there are too few, one: not a graph for a CPU is what is meant.
    """
    return gpus[: max(1, len(gpus) // num_cells)]


def gpus_of_cells(graph: StageGraph, num_cells: int, gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """The GPUs of each cell: those of the graph, moved by as many as one cell needs; NoRoom.

    A cell needs as many as its graph's highest number says, because GPUs are numbered from 0.
    """
    used = {gpu for replica in graph.replicas.values() for gpu in used_gpus(replica.gpus)}
    width = max(used, default=-1) + 1
    if width * num_cells > len(gpus):
        raise NoRoom(
            f"{num_cells} cells of {width} GPUs each need {width * num_cells}; this machine has "
            f"{len(gpus)}: fewer cells, or CUDA_VISIBLE_DEVICES may hide GPUs"
        )
    return [tuple(gpus[i * width : (i + 1) * width]) for i in range(num_cells)]


@contextlib.contextmanager
def reserved_ports(host: str, port: int, num_cells: int) -> Iterator[tuple[int, list[int]]]:
    """The balancer's port and those of the cells, which follow it; with 0, any that are free.

    Each is bound by a socket that does not listen: who sets SO_REUSEADDR, as servers do, can listen
    there, and the kernel gives the port to nobody else. OSError if one is taken.
    """
    if port and port + num_cells > LAST_PORT:
        raise NoRoom(f"the cells' ports follow {port}: there are only {LAST_PORT}")
    with contextlib.ExitStack() as held:
        front = held.enter_context(bound(host, port))
        places = [port and port + 1 + number for number in range(num_cells)]
        cells = [held.enter_context(bound(HOST, place)) for place in places]
        yield port_of(front), [port_of(one) for one in cells]


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the port and does not listen; OSError names the port."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return held


def port_of(held: socket.socket) -> int:
    """The port that a socket has."""
    return int(held.getsockname()[1])

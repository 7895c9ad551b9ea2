"""GPUs and ports of cells."""

import errno
import socket
from typing import Any

import pytest
from support.gateway import OMNI
from support.ports import free_port

from omnistage.server.cells.layout import (
    HOST,
    Cell,
    NoRoom,
    gpu_share,
    gpus_of_cells,
    reserved_ports,
)
from omnistage.server.serve import listen
from omnistage.stage_configs.graph import StageGraph


def graph(**gpus: list[int]) -> StageGraph:
    """The stages of an omni model on these GPUs."""
    stages: dict[str, Any] = {
        name: {**stage, "gpus": gpus.get(name, [])}
        for name, stage in OMNI["stages"].items()  # type: ignore[attr-defined]
    }
    return StageGraph.model_validate({**OMNI, "stages": stages})


def names(count: int) -> list[str]:
    return [f"GPU-{number}" for number in range(count)]


@pytest.fixture(autouse=True)
def a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names(8)))


def test_a_cell_of_one_gpu_has_the_next_one() -> None:
    found = gpus_of_cells(graph(thinker=[0], talker=[0]), 3, names(8))
    assert found == [("GPU-0",), ("GPU-1",), ("GPU-2",)]


def test_a_cell_of_two_gpus_has_the_next_two() -> None:
    found = gpus_of_cells(graph(thinker=[0], talker=[1], code2wav=[1]), 4, names(8))
    assert found == [tuple(names(8)[i : i + 2]) for i in (0, 2, 4, 6)]


def test_numbers_that_a_graph_leaves_out_are_kept_free_so_that_no_gpu_is_two_cells() -> None:
    found = gpus_of_cells(graph(thinker=[1], talker=[3], code2wav=[3]), 2, names(8))
    assert found == [tuple(names(8)[:4]), tuple(names(8)[4:])]


def test_too_few_gpus_are_refused() -> None:
    two = graph(thinker=[0], talker=[1], code2wav=[1])
    with pytest.raises(NoRoom, match="4 cells of 2 GPUs each need 8; this machine has 7"):
        gpus_of_cells(two, 4, names(7))


def test_without_gpus_cells_are_servers_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_of_cells(graph(), 3, []) == [(), (), ()]


@pytest.mark.parametrize(
    ("num_cells", "num_gpus", "share"), [(1, 8, 8), (3, 8, 2), (8, 8, 1), (9, 8, 1), (2, 0, 0)]
)
def test_a_graph_is_chosen_by_what_one_cell_may_use(
    num_cells: int, num_gpus: int, share: int
) -> None:
    assert list(gpu_share(num_cells, names(num_gpus))) == names(share)


def test_a_server_can_listen_at_a_reserved_port_and_again_after_it() -> None:
    with reserved_ports(HOST, 0, 2) as (front, cells):
        assert len({front, *cells}) == 3
        for _ in range(2):
            listening = listen(HOST, cells[1])
            with socket.create_connection((HOST, cells[1])):
                listening.close()


def test_ports_of_cells_follow_the_balancers() -> None:
    free = free_port()
    with reserved_ports(HOST, free, 3) as (front, cells):
        assert (front, cells) == (free, [free + 1, free + 2, free + 3])


def test_a_port_that_is_taken_is_named() -> None:
    with (
        socket.create_server((HOST, 0)) as taken,
        pytest.raises(OSError, match=f"in use: '{HOST}:{taken.getsockname()[1]}'") as refused,
        reserved_ports(HOST, taken.getsockname()[1], 1),
    ):
        pass
    assert refused.value.errno == errno.EADDRINUSE


def test_ports_beyond_the_last_one_are_refused() -> None:
    with pytest.raises(NoRoom, match="65535"), reserved_ports(HOST, 65530, 8):
        pass


def test_a_cell_has_a_name_and_an_address() -> None:
    cell = Cell(2, 8003, ())
    assert (cell.name, cell.url) == ("cell2", "http://127.0.0.1:8003")

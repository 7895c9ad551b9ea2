"""Layouts: their memory, which fit, and their graph files."""

from pathlib import Path

import pytest

from omnistage.server.cli.planning.gpus import read_gpus
from omnistage.server.cli.planning.layouts import Layout, layouts, title
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.models.memory_needs import needs_of
from omnistage.stage_configs.overrides import stage_override

OMNI = "Qwen/Qwen3-Omni-30B-A3B-Instruct"


def laid_out(gpus: str, *changes: str) -> dict[int, Layout]:
    """Shared and split ones, by the number of voices."""
    made = layouts(needs_of(OMNI), OMNI, read_gpus(gpus), [*map(stage_override, changes)])
    return {one.voices: one for one in made if one.form != "tensor"}


def fitting(gpus: str) -> list[int]:
    return [voices for voices, one in laid_out(gpus).items() if not one.problem]


@pytest.mark.parametrize(
    ("gpus", "voices"),
    [
        ("1xH200", [0]),
        ("8xH200", [0, 1, 2, 3]),
        ("1x80GB", []),
        ("2x80GB", [1]),
        ("24x80GB", [1, 2, 3]),
        ("1xB200", [0]),
        ("8x48GB", []),
    ],
)
def test_what_fits_is_known_by_memory_and_number(gpus: str, voices: list[int]) -> None:
    assert fitting(gpus) == voices


def test_one_gpu_holds_what_the_deployment_page_says() -> None:
    (held,) = laid_out("1xH200")[0].usage.values()
    assert [one.stage.name for one in held] == ["thinker", "talker", "code2wav"]
    assert sum(one.total for one in held) == pytest.approx(107.3, abs=0.1)


def test_a_split_server_has_the_shares_of_its_graph() -> None:
    held = laid_out("3x80GB")[2].usage
    assert [sorted(one.stage.name for one in held[gpu]) for gpu in held] == [
        ["thinker"],
        ["code2wav", "talker"],
        ["code2wav", "talker"],
    ]
    assert held[0][0].total == pytest.approx(0.9 * 80)
    assert sum(one.total for one in held[2]) == pytest.approx(0.6 * 80 + 0.4)


@pytest.mark.parametrize(
    ("gpus", "voices", "says"),
    [
        ("1x80GB", 0, "thinker, talker, code2wav want 107.3 GB, and 72.0 of 80 GB may be used"),
        ("2x48GB", 1, "thinker: at least 66.6 GB, it gets 43.2"),
        ("1xH200", 1, "a server wants 2 GPUs of a machine, which has 1"),
    ],
)
def test_a_layout_says_why_it_does_not_fit(gpus: str, voices: int, says: str) -> None:
    assert laid_out(gpus)[voices].problem == says


def test_servers_use_as_many_gpus_as_there_are_servers_for() -> None:
    layout = laid_out("8xH200")[2]
    assert (layout.servers, layout.spare) == (2, 2)
    assert title(layout) == "8 x H200: 2 servers of 3 GPUs, 2 spare"


@pytest.mark.parametrize(
    ("gpus", "machine", "voices", "servers", "spare"),
    [
        ("24xH200", 8, 2, 6, 6),
        ("24xH200", 12, 2, 8, 0),
        ("30xH200", 8, 1, 15, 0),
        ("31xH200", 8, 1, 15, 1),
        ("22xH200", 8, 3, 5, 2),
        ("3xH200", 1, 0, 3, 0),
    ],
)
def test_no_server_spans_two_machines(
    gpus: str, machine: int, voices: int, servers: int, spare: int
) -> None:
    made = layouts(needs_of(OMNI), OMNI, read_gpus(gpus, machine))
    (layout,) = [one for one in made if one.voices == voices and one.form != "tensor"]
    assert (layout.servers, layout.spare) == (servers, spare)


@pytest.mark.parametrize("voices", [0, 1, 2, 3])
def test_the_graph_file_is_valid_and_has_a_gpu_for_each_replica(
    voices: int, tmp_path: Path
) -> None:
    path = tmp_path / "server.yaml"
    layout = laid_out("8xH200")[voices]
    path.write_text(layout.text("omnistage plan"))
    graph = load_graph(path)
    assert graph.model == OMNI
    used = {
        name: tuple(replica.gpus for replica in stage.all_replicas)
        for name, stage in graph.stages.items()
    }
    behind = tuple((gpu,) for gpu in range(1, voices + 1)) or ((0,),)
    assert used == {"thinker": ((0,),), "talker": behind, "code2wav": behind}


def test_changes_are_in_the_layout_and_in_its_file(tmp_path: Path) -> None:
    layout = laid_out("1xH200", "talker.max_num_seqs=32")[0]
    assert layout.graph.stages["talker"].engine["max_num_seqs"] == 32
    path = tmp_path / "server.yaml"
    path.write_text(layout.text("omnistage plan"))
    assert load_graph(path).stages["talker"].engine["max_num_seqs"] == 32


@pytest.mark.parametrize(("gpus", "servers"), [("1xH200", 0), ("2xH200", 1), ("7xH200", 3)])
def test_a_tensor_server_has_its_first_stage_over_two_gpus_and_all_others_on_each(
    gpus: str, servers: int, tmp_path: Path
) -> None:
    made = [*layouts(needs_of(OMNI), OMNI, read_gpus(gpus))]
    (layout,) = [one for one in made if one.form == "tensor"]
    assert layout.servers == servers
    if not servers:
        assert layout.problem == "a server wants 2 GPUs of a machine, which has 1"
    else:
        assert not layout.problem
        for usage in layout.usage.values():
            assert [one.stage.name for one in usage] == ["thinker", "talker", "code2wav"]
            assert usage[0].weights == pytest.approx(63.4 / 2)
        path = tmp_path / "server.yaml"
        path.write_text(layout.text("omnistage plan"))
        stages = load_graph(path).stages
        assert stages["thinker"].engine["tensor_parallel_size"] == 2
        used = {name: [one.gpus for one in stage.all_replicas] for name, stage in stages.items()}
        each = [(0,), (1,)]
        assert used == {"thinker": [(0, 1)], "talker": each, "code2wav": each}

"""`placement` of a graph: where its stages run, and what each takes of its node."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server.cli import app
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph

GRAPH = """\
model: some/model
placement: PLACEMENT
stages:
  thinker: {kind: qwen3_omni.thinker, gpus: GPUS}
  talker: {kind: qwen3_omni.talker}
  code2wav: {kind: qwen3_omni.code2wav, resources: RESOURCES}
edges:
  - {from: thinker, to: talker}
  - {from: talker, to: code2wav}
outputs: {text: thinker, audio: code2wav}
"""


def write(folder: Path, placement: str = "ray", gpus: str = "1", resources: str = "{}") -> Path:
    text = GRAPH.replace("PLACEMENT", placement).replace("GPUS", gpus)
    path = folder / "graph.yaml"
    path.write_text(text.replace("RESOURCES", resources))
    return path


@pytest.mark.parametrize("placement", ["ray", "{by: ray}"])
def test_a_placement_is_a_name_or_a_mapping(tmp_path: Path, placement: str) -> None:
    found = load_graph(write(tmp_path, placement)).placement
    assert (found.by, found.address, found.strategy) == ("ray", "auto", "PACK")
    assert found.is_on_nodes


def test_without_a_placement_stages_are_on_this_machine(tmp_path: Path) -> None:
    assert not load_graph(write(tmp_path, "local", "[0]")).placement.is_on_nodes


@pytest.mark.parametrize(
    ("gpus", "resources", "thinker", "code2wav", "numbers"),
    [
        ("1", "{}", {"CPU": 1, "GPU": 1}, {"CPU": 1}, (0,)),
        ("0.5", "{CPU: 0, disk: 2}", {"CPU": 1, "GPU": 0.5}, {"disk": 2}, (0,)),
    ],
)
def test_a_stage_takes_of_its_node_what_the_graph_says_and_a_cpu(
    tmp_path: Path,
    gpus: str,
    resources: str,
    thinker: dict[str, float],
    code2wav: dict[str, float],
    numbers: tuple[int, ...],
) -> None:
    stages = load_graph(write(tmp_path, gpus=gpus, resources=resources)).stages
    assert stages["thinker"].bundle == thinker
    assert stages["code2wav"].bundle == code2wav
    assert stages["talker"].bundle == {"CPU": 1}
    assert stages["thinker"].own_gpus == numbers


def test_a_graph_is_the_same_after_json(tmp_path: Path) -> None:
    graph = load_graph(write(tmp_path, gpus="0.5", resources="{disk: 2}"))
    assert StageGraph.model_validate_json(graph.model_dump_json()) == graph


@pytest.mark.parametrize(
    ("placement", "gpus", "resources", "says"),
    [
        ("local", "1", "{}", "4: stages.thinker.gpus: how many GPUs is for `placement: ray`"),
        ("ray", "[0]", "{}", "4: stages.thinker.gpus: on Ray's nodes it is how many GPUs"),
        ("local", "[0]", "{disk: 1}", "6: stages.code2wav.resources: resources are those of a"),
        ("ray", "1", "{GPU: 1}", "6: stages.code2wav.resources: how many GPUs a stage gets is"),
        ("ray", "0", "{}", "4: stages.thinker.gpus: 0 GPUs; a stage without one leaves the key"),
        ("ray", "-1", "{}", "4: stages.thinker.gpus: -1 GPUs"),
        ("ray", ".inf", "{}", "4: stages.thinker.gpus: inf GPUs"),
        ("ray", "1.5", "{}", "4: stages.thinker.gpus: 1.5 GPUs: a part of one, or whole ones"),
        ("ray", "yes", "{}", "4: stages.thinker.gpus: must be a list, not True"),
        ("ray", "1", "{disk: -1}", "6: stages.code2wav.resources.disk: must be greater than"),
        ("slurm", "[0]", "{}", "2: placement: must be 'local' or 'ray', not 'slurm'"),
        ("{by: ray, adress: auto}", "1", "{}", "2: placement.adress: unknown key; did you mean"),
        ("{by: ray, strategy: NEAR}", "1", "{}", "2: placement.strategy: must be 'PACK', 'SPR"),
    ],
)
def test_a_mistake_names_file_line_and_key(
    tmp_path: Path, placement: str, gpus: str, resources: str, says: str
) -> None:
    path = write(tmp_path, placement, gpus, resources)
    with pytest.raises(GraphError) as caught:
        load_graph(path)
    assert str(caught.value).startswith(f"{path}:{says}")


def test_the_name_under_which_a_number_of_gpus_is_kept_is_no_key(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("gpus: 1", "num_gpus: 1"))
    with pytest.raises(GraphError, match=r"thinker\.num_gpus: unknown key; did you mean 'gpus'"):
        load_graph(path)


def test_more_gpus_than_a_stage_can_use_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("resources: {}", "gpus: 2"))
    with pytest.raises(GraphError, match=r":6: stages\.code2wav\.gpus: 2 GPUs; a stage of this"):
        load_graph(path)


def test_check_prints_how_many_gpus_a_stage_gets(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", str(write(tmp_path))], env={"COLUMNS": "300"})
    assert done.exit_code == 0
    assert "1 of a node" in done.output


def test_each_replica_takes_as_much_of_its_node(tmp_path: Path) -> None:
    path = write(tmp_path, resources="{disk: 1}, replicas: 2")
    graph = load_graph(path, overrides=())
    names = [replica.name for replica in graph.stages["code2wav"].all_replicas]
    assert len(names) == 2
    assert [graph.spec_of(name).bundle for name in names] == [{"CPU": 1, "disk": 1}] * 2
    path.write_text(path.read_text().replace("gpus: 1", "gpus: 1, replicas: 2"))
    thinkers = load_graph(path).stages["thinker"].all_replicas
    assert [replica.gpus for replica in thinkers] == [(0,), (0,)]  # as each process numbers them

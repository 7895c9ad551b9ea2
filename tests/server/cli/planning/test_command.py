"""`omnistage plan --gpus`: what is printed, written and refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.graph_file import load_graph

OMNI = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
WIDE = {"COLUMNS": "200"}


def planned(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["plan", OMNI, *arguments], env=WIDE)
    assert result.exit_code == code, result.output
    return result.output


def test_a_plan_shows_the_layout_its_memory_and_the_others_that_fit() -> None:
    output = planned("--gpus", "2xH200")
    assert f"{OMNI}, 2 x H200: 2 servers of 1 GPU (shared)" in output
    assert "thinker: 63.4 weights, 25.8 cache" in output
    assert "107.3" in output
    others = output.partition("other layouts that fit")[2]
    assert others.count("2 x H200: 1 server of 2 GPUs") == 2
    assert "split" in others
    assert "tensor" in others


def test_where_no_gpu_holds_all_stages_the_first_layout_is_split() -> None:
    output = planned("--gpus", "24x80GB")
    assert "24 x H100: 12 servers of 2 GPUs (split)" in output


@pytest.mark.parametrize(
    ("form", "gpus", "visible"), [("shared", 1, "0"), ("split", 2, "0,1"), ("tensor", 2, "0,1")]
)
def test_the_graph_file_of_a_server_is_written(
    form: str, gpus: int, visible: str, tmp_path: Path
) -> None:
    path = tmp_path / "server.yaml"
    output = planned("--gpus", "3xH200", "--layout", form, "--write", str(path))
    servers = 3 // gpus
    assert f"a machine holds {servers}, the first by: CUDA_VISIBLE_DEVICES={visible}" in output
    assert f"omnistage serve {path}" in output
    used = {
        gpu
        for stage in load_graph(path).stages.values()
        for replica in stage.all_replicas
        for gpu in replica.gpus
    }
    assert used == set(range(gpus))


REFUSED = [
    (["--gpus", "8xT4"], "--gpus 8xT4: must be such as 8xH200 or 24x80GB; kinds: H200"),
    (["--gpus", "1x80GB"], f"{OMNI} does not fit on 1x80GB: "),
    (["--gpus", "1x80GB"], "qwen3_omni_1gpu_80gb.yaml fits on one such GPU, if it computes in FP8"),
    (["--gpus", "1xH200", "--layout", "split"], "a server wants 2 GPUs of a machine, which"),
    (["--gpus", "1xH200", "--layout", "round"], "--layout round: must be one of shared, split"),
    (["--gpus", "1xH200", "--write", "server.txt"], "--write server.txt: writes .yaml files"),
    (["--gpus", "1xH200", "--stage", "talkr.seed=1"], "no stage 'talkr'"),
    (["--layout", "split"], "--layout and --write have no effect without --gpus"),
    (["--gpus", "1xH200", "--model", "some/model"], "memory that some/model needs is not known"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=[" ".join(one[0]) for one in REFUSED])
def test_what_cannot_be_planned_is_refused_in_one_line(arguments: list[str], says: str) -> None:
    output = " ".join(planned(*arguments, code=1).split())
    assert output.startswith("error: ")
    assert says in output


def test_a_graph_in_fp8_is_not_named_where_it_does_not_fit_either() -> None:
    assert "fits on one such GPU" not in planned("--gpus", "1x48GB", code=1)
    assert "fits on one such GPU" not in planned("--gpus", "1x80GB", "--layout", "split", code=1)

"""GPUs and parallel sizes of a stage: what it cannot use is refused where it is written."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.parallel_graphs import PICTURES, refusal, written
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.rules.parallel import num_lanes

TEXT = """\
model: some/model
stages:
  text:
    kind: vllm.text
    gpus: {gpus}
    engine:
      {engine}
outputs: {{text: text}}
"""
OMNI = """\
model: some/model
stages:
  thinker:
    kind: qwen3_omni.thinker
    engine: {max_num_seqs: 4}
  talker: {kind: qwen3_omni.talker}
  code2wav:
    kind: qwen3_omni.code2wav
    gpus: [0]
edges:
  - {from: thinker, to: talker}
  - {from: talker, to: code2wav}
outputs: {text: thinker, audio: code2wav}
"""


@pytest.mark.parametrize(
    ("gpus", "engine", "says"),
    [
        ("[0, 1]", "max_num_seqs: 4", "2 GPUs, but its engine uses 1 (no tensor_parallel_size)"),
        ("[0]", "tensor_parallel_size: 4", "1 GPU, but its engine uses 4 (tensor_parallel_size 4)"),
        ("[0, 1]", "{tensor_parallel_size: 2, pipeline_parallel_size: 2}", "uses 4"),
        ("[0, 1, 2]", "{tensor_parallel_size: 3, data_parallel_size: 2}", "uses 6"),
    ],
)
def test_gpus_and_parallel_sizes_must_be_equal(
    tmp_path: Path, gpus: str, engine: str, says: str
) -> None:
    said = refusal(tmp_path, TEXT.format(gpus=gpus, engine=engine))
    assert said.startswith("5: stages.text.gpus: ")
    assert says in said
    assert said.endswith("the two must be equal")


@pytest.mark.parametrize(
    ("gpus", "engine"),
    [
        ("[3]", "max_num_seqs: 4"),
        ("[0, 1]", "tensor_parallel_size: 2"),
        ("[0, 1, 2, 3]", "{tensor_parallel_size: 2, pipeline_parallel_size: 2}"),
        ("[0, 1, 2, 3]", "{tensor_parallel_size: 2, data_parallel_size: 2}"),
        ("[0, 1]", "{tensor_parallel_size: 2, pipeline_parallel_size: null}"),
        ("[]", "tensor_parallel_size: 2"),  # on a CPU, or on all GPUs that the server may use
    ],
)
def test_sizes_that_use_all_gpus_are_taken(tmp_path: Path, gpus: str, engine: str) -> None:
    load_graph(written(tmp_path, TEXT.format(gpus=gpus, engine=engine)))


def test_a_stage_of_one_gpu_refuses_more(tmp_path: Path) -> None:
    load_graph(written(tmp_path, OMNI))
    said = refusal(tmp_path, OMNI.replace("gpus: [0]", "gpus: [0, 1]"))
    assert said == "9: stages.code2wav.gpus: 2 GPUs; a stage of this kind uses one"


@pytest.mark.parametrize(
    ("text", "stage", "line"), [(OMNI, "code2wav", 9), (PICTURES, "dit", 5)], ids=["omni", "dit"]
)
def test_sizes_of_vllm_are_refused_elsewhere(
    tmp_path: Path, text: str, stage: str, line: int
) -> None:
    more = "gpus: [0]\n    engine: {tensor_parallel_size: 1}"
    said = refusal(tmp_path, text.replace("gpus: [0]", more))
    assert said.startswith(f"{line + 1}: stages.{stage}.engine.tensor_parallel_size: a stage of ")


def test_a_stage_with_an_edge_has_as_many_gpus_as_its_sizes_say(tmp_path: Path) -> None:
    more = OMNI.replace("qwen3_omni.talker}", "qwen3_omni.talker, gpus: [0, 1]}")
    said = refusal(tmp_path, more)
    assert said.startswith("6: stages.talker.gpus: 2 GPUs, but its engine uses 1")
    sizes = "gpus: [0, 1], engine: {tensor_parallel_size: 2}"
    load_graph(written(tmp_path, more.replace("gpus: [0, 1]", sizes)))
    said = refusal(tmp_path, more.replace("gpus: [0, 1]", sizes.replace("[0, 1]", "[1]")))
    assert said.startswith("6: stages.talker.gpus: 1 GPU, but its engine uses 2")


@pytest.mark.parametrize("size", ["tensor_parallel_size", "data_parallel_size"])
def test_sizes_of_stages_with_edges_are_taken_without_gpus(tmp_path: Path, size: str) -> None:
    load_graph(written(tmp_path, OMNI.replace("max_num_seqs: 4", f"{size}: 2")))
    text = OMNI.replace("qwen3_omni.talker}", f"qwen3_omni.talker, engine: {{{size}: 2}}}}")
    load_graph(written(tmp_path, text))


def test_only_where_one_rank_has_all_that_an_edge_needs_there_may_be_a_pipeline(
    tmp_path: Path,
) -> None:
    load_graph(written(tmp_path, OMNI.replace("max_num_seqs: 4", "pipeline_parallel_size: 2")))
    engine = "engine: {pipeline_parallel_size: 2}"
    said = refusal(tmp_path, OMNI.replace("qwen3_omni.talker}", f"qwen3_omni.talker, {engine}}}"))
    place = "6: stages.talker.engine.pipeline_parallel_size"
    assert said.startswith(f"{place}: must be 1: the ranks of a pipeline do not all have")


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("prefill_context_parallel_size: 2", "must be 1: what leaves a step with an edge"),
        ("decode_context_parallel_size: 2", "must be 1: what leaves a step with an edge"),
        ("enable_dbo: true", "must be false: what leaves a step with an edge"),
        ("data_parallel_rank: 0", "a stage starts all"),
        ("data_parallel_size_local: 2", "a stage starts all"),
        ("data_parallel_external_lb: true", "a stage starts all"),
        ("data_parallel_backend: ray", "not ray: a stage starts all"),
        ("distributed_executor_backend: ray", "not ray: a stage starts all"),
        ("nnodes: 2", "a stage starts all"),
        ("enable_elastic_ep: true", "a stage starts all"),
    ],
)
def test_what_would_leave_wrongly_or_start_ranks_elsewhere_is_refused(
    tmp_path: Path, engine: str, told: str
) -> None:
    said = refusal(tmp_path, OMNI.replace("max_num_seqs: 4", engine))
    name = engine.partition(":")[0]
    assert said.startswith(f"5: stages.thinker.engine.{name}: {told}")


@pytest.mark.parametrize(
    "engine",
    ["nnodes: 1", "data_parallel_size_local: 1", "enable_dbo: false", "data_parallel_backend: mp"],
)
def test_what_changes_nothing_is_not(tmp_path: Path, engine: str) -> None:
    load_graph(written(tmp_path, OMNI.replace("max_num_seqs: 4", engine)))


def test_the_kinds_whose_edges_allow_a_pipeline_are_known() -> None:
    pipelines = {name for name, kind in KINDS.items() if kind.is_pipeline}
    assert pipelines == {"qwen3_omni.thinker", "vllm.text"}


def test_a_lane_for_each_engine_that_shares_the_work() -> None:
    assert num_lanes({}) == num_lanes({"data_parallel_size": None}) == 1
    assert num_lanes({"data_parallel_size": 3, "tensor_parallel_size": 2}) == 3


def test_a_thinker_without_an_edge_may_use_several(tmp_path: Path) -> None:
    graph: dict[str, Any] = {
        "model": "some/model",
        "stages": {
            "thinker": {
                "kind": "qwen3_omni.thinker",
                "gpus": [0, 1],
                "engine": {"tensor_parallel_size": 2},
            }
        },
        "outputs": {"text": "thinker"},
    }
    load_graph(written(tmp_path, yaml.safe_dump(graph)))


@pytest.mark.parametrize("name", ["tensor_parallel_size", "data_parallel_size"])
def test_a_parallel_size_is_at_least_1(tmp_path: Path, name: str) -> None:
    said = refusal(tmp_path, TEXT.format(gpus="[0]", engine=f"{name}: 0"))
    assert said.startswith(f"7: stages.text.engine.{name}: 0 is no size")


def test_check_and_serve_refuse_and_start_nothing(tmp_path: Path) -> None:
    path = str(written(tmp_path, PICTURES.replace("[0]", "[0, 1]")))
    for command in ("check", "serve"):
        result = CliRunner().invoke(cli.app, [command, path])
        assert result.exit_code == 1
        assert f"error: {path}:5: stages.dit.gpus: 2 GPUs, but its engine uses 1" in result.output


def test_every_kind_says_whether_several_gpus_may_share_it() -> None:
    alone = {name for name, kind in KINDS.items() if not kind.is_parallel}
    vocoders = {"qwen3_omni.code2wav", "qwen2_5_omni.token2wav", "qwen3_tts.code2wav"}
    assert alone == {*vocoders, "bagel.llm", "voxcpm2.talker", "voxcpm2.vae", "diffusers"}
    assert [name for name, kind in KINDS.items() if kind.has_ranks] == ["diffusers"]


def test_a_graph_that_is_not_from_a_file_is_checked_too() -> None:
    stages = {"dit": {"kind": "diffusers", "gpus": [0, 1]}}
    with pytest.raises(ValueError, match="its engine uses 1"):
        StageGraph.model_validate({"model": "m", "stages": stages, "outputs": {"image": "dit"}})

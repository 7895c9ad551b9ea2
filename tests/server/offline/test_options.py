"""A graph that is chosen and changed from Python is the one that a file would say."""

from pathlib import Path
from typing import Any

import pytest

from omnistage.server.offline.errors import StartFailed
from omnistage.server.offline.options import GraphChoice, check_machine
from omnistage.server.telemetry.logs import LogLevel, log_environment
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

TINY = str(GRAPHS / "qwen3_omni_tiny.yaml")


def test_without_changes_it_is_the_file_s() -> None:
    assert GraphChoice("m", TINY).resolve() == load_graph(Path(TINY), "m")


def test_a_folder_has_the_graph_that_serves_it(tiny_checkpoint: Path) -> None:
    graph = GraphChoice(str(tiny_checkpoint)).resolve()
    assert graph == load_graph(Path(TINY), str(tiny_checkpoint))


def test_a_key_is_the_stage_s_or_its_engine_s() -> None:
    stages: dict[str, dict[str, Any]] = {
        "thinker": {"max_model_len": 512, "options": {"tool_parser": "none"}},
        "code2wav": {"engine": {"num_slots": 2}, "environment": {"OMP_NUM_THREADS": 2}},
    }
    before = load_graph(Path(TINY), "m")
    graph = GraphChoice("m", TINY, stages=stages, deadlines={"first_chunk_s": 600}).resolve()
    thinker, code2wav = graph.stages["thinker"], graph.stages["code2wav"]
    assert thinker.engine == {**before.stages["thinker"].engine, "max_model_len": 512}
    assert thinker.options == {"tool_parser": "none", "enable_auto_tools": True}
    assert code2wav.engine == {"num_slots": 2}
    assert code2wav.environment["OMP_NUM_THREADS"] == 2
    assert code2wav.environment["VLLM_NO_USAGE_STATS"] == 1
    assert graph.deadlines == Deadlines(first_chunk_s=600)
    assert graph.stages["talker"] == before.stages["talker"]
    assert graph.edges == before.edges


def test_weights_and_offload_are_of_all_stages_and_of_pipelines() -> None:
    graph = GraphChoice("m", TINY, load_format="dummy").resolve()
    assert {stage.engine["load_format"] for stage in graph.stages.values()} == {"dummy"}
    pipeline = str(GRAPHS / "qwen_image.yaml")
    graph = GraphChoice("m", pipeline, offload="sequential").resolve()
    assert graph.stages["dit"].engine["offload"] == "sequential"


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (GraphChoice("m", "no.yaml"), "no.yaml: No such file"),
        (GraphChoice(TINY), "it names no model"),
        (GraphChoice("m", TINY, {"thinkr": {}}), "no stage 'thinkr'; did you mean 'thinker'?"),
        (GraphChoice("m", TINY, {"thinkr": {"gpus": []}}), "no stage 'thinkr'; did you mean"),
        (GraphChoice("m", TINY, {"thinkr": {"max_num_seqs": 1}}), "no stage 'thinkr'; did you"),
        (GraphChoice("m", TINY, {"thinker": {"max_num_sqs": 1}}), "did you mean 'max_num_seqs'?"),
        (GraphChoice("m", TINY, {"thinker": {"max_num_seqs": 0}}), "stages.thinker.engine"),
        (GraphChoice("m", TINY, deadlines={"first_s": 1.0}), "deadlines.first_s"),
        (GraphChoice("m", TINY, offload="sequential"), "no stage of kind diffusers"),
    ],
)
def test_what_cannot_be_is_said(choice: GraphChoice, said: str) -> None:
    with pytest.raises(StartFailed) as raised:
        choice.resolve()
    assert said in raised.value.message
    assert raised.value.code == "invalid_graph"


def test_a_gpu_that_is_not_there_is_said() -> None:
    graph = GraphChoice("m", TINY, {"thinker": {"gpus": [1023]}}).resolve()
    with pytest.raises(StartFailed, match="stage thinker wants GPU 1023; this machine has"):
        check_machine(graph)


def test_gpus_of_nodes_are_not_looked_for_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "graph.yaml"
    stages = "{text: {kind: vllm.text, gpus: 2, engine: {tensor_parallel_size: 2}}}"
    path.write_text(f"placement: ray\nstages: {stages}\noutputs: {{text: text}}\n")
    check_machine(GraphChoice("m", str(path)).resolve())


def test_a_package_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GraphChoice("m", TINY).resolve()
    sentence = "stage thinker needs vllm"
    monkeypatch.setattr("omnistage.server.offline.options.missing_packages", lambda _: [sentence])
    with pytest.raises(StartFailed, match=sentence):
        check_machine(graph)


def test_stages_are_told_the_level_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    monkeypatch.delenv("OMNISTAGE_LOG_LEVEL", raising=False)
    assert log_environment(LogLevel.INFO) == {}
    told = log_environment(LogLevel.WARNING)
    assert told == {"OMNISTAGE_LOG_LEVEL": "WARNING", "VLLM_LOGGING_LEVEL": "WARNING"}
    monkeypatch.setenv("OMNISTAGE_LOG_LEVEL", "debug")  # stages read it in capitals
    assert log_environment(LogLevel.INFO)["OMNISTAGE_LOG_LEVEL"] == "INFO"

"""What engines are told so that they can write traces."""

from pathlib import Path
from typing import Any

import pytest
from support.gateway.serving import OMNI

from omnistage.stage_configs import profiles
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.profiles import VLLM, with_profiles
from omnistage.stage_configs.rules.engine_arguments import profiler_fields

FOLDER = Path("/profiles")


def engines(graph: StageGraph) -> dict[str, dict[str, Any]]:
    made = with_profiles(graph, FOLDER).stages
    return {name: stage.engine for name, stage in made.items()}


def test_each_stage_has_a_folder_of_its_own() -> None:
    told = engines(StageGraph.model_validate(OMNI))
    assert told["code2wav"]["profile_folder"] == "/profiles/code2wav"
    for name in ("thinker", "talker"):
        assert told[name]["profiler_config"] == {**VLLM, "torch_profiler_dir": f"/profiles/{name}"}
    stages = {"dit": {"kind": "diffusers"}}
    drawn = StageGraph.model_validate({"stages": stages, "outputs": {"image": "dit"}})
    assert engines(drawn)["dit"] == {"profile_folder": "/profiles/dit"}


def test_what_a_graph_file_says_stays() -> None:
    graph = StageGraph.model_validate(OMNI)
    own: dict[str, dict[str, Any]] = {
        "thinker": {"profiler_config": {"profiler": "cuda"}},
        "code2wav": {"profile_folder": "/mine"},
    }
    stages = {
        name: stage.model_copy(update={"engine": own.get(name, {})})
        for name, stage in graph.stages.items()
    }
    told = engines(graph.model_copy(update={"stages": stages}))
    assert {name: told[name] for name in own} == own
    assert "profiler_config" in told["talker"]


def test_requests_wait_for_a_stage_that_writes_as_long_as_for_a_command() -> None:
    own = {"first_chunk_s": 9.0, "next_chunk_s": 500.0, "command_s": 40.0}
    graph = StageGraph.model_validate({**OMNI, "deadlines": own})
    deadlines = with_profiles(graph, FOLDER).deadlines
    waits = deadlines.first_chunk_s, deadlines.next_chunk_s, deadlines.command_s
    assert waits == (40.0, 500.0, 40.0)


def test_cupti_stays_with_a_process_unless_the_graph_file_says_otherwise() -> None:
    graph = StageGraph.model_validate(OMNI)
    own = {"TEARDOWN_CUPTI": "1", "A": "b"}
    talker = graph.stages["talker"].model_copy(update={"environment": own})
    graph = graph.model_copy(update={"stages": {**graph.stages, "talker": talker}})
    made = with_profiles(graph, FOLDER).stages
    assert made["thinker"].environment["TEARDOWN_CUPTI"] == "0"
    assert made["code2wav"].environment["TEARDOWN_CUPTI"] == "0"
    assert made["talker"].environment == own


def test_a_field_that_this_vllm_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(VLLM) <= profiler_fields()
    monkeypatch.setattr(profiles, "profiler_fields", lambda: frozenset({"profiler"}))
    told = engines(StageGraph.model_validate(OMNI))
    expected = {"profiler": "torch", "torch_profiler_dir": "/profiles/thinker"}
    assert told["thinker"]["profiler_config"] == expected
    monkeypatch.setattr(profiles, "profiler_fields", frozenset)
    assert "profiler_config" not in engines(StageGraph.model_validate(OMNI))["thinker"]

"""Parts of graphs that no edge joins: what each makes, and transcribers of the wrong model."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.graph_parts import (
    chat_hears,
    chat_outputs,
    has_speech_apart,
    reads_out,
    session_outputs,
    takes_speech,
)
from omnistage.stage_configs.pick import GRAPHS, find_graph, pick_graph

OMNI = ("thinker", "talker", "code2wav")
ASR = {"transcriber": {"kind": "vllm.transcriber"}}
TEXT = {"text": {"kind": "vllm.text"}}
THINKER = {"thinker": {"kind": "qwen3_omni.thinker"}}
TTS = {"talker": {"kind": "qwen3_tts.talker"}, "code2wav": {"kind": "qwen3_tts.code2wav"}}
WHOLE = {name: {"kind": f"qwen3_omni.{name}"} for name in OMNI}
TTS_EDGES = [{"from": "talker", "to": "code2wav"}]


def graph(stages: dict[str, Any], outputs: dict[str, str], edges: Any = ()) -> StageGraph:
    whole = {"model": "m", "stages": stages, "edges": list(edges), "outputs": outputs}
    return StageGraph.model_validate(whole)


TRANSCRIBER = graph(ASR, {"transcript": "transcriber"})
HEARS = graph(THINKER, {"text": "thinker"})
READS = graph(TTS, {"audio": "code2wav"}, TTS_EDGES)
SPEAKS = graph(TEXT | TTS, {"text": "text", "audio": "code2wav"}, TTS_EDGES)
CASCADE = graph(
    ASR | TEXT | TTS,
    {"transcript": "transcriber", "text": "text", "audio": "code2wav"},
    TTS_EDGES,
)
ONE = graph(
    WHOLE | ASR,
    {"text": "thinker", "audio": "code2wav", "transcript": "transcriber"},
    [{"from": "thinker", "to": "talker"}, *TTS_EDGES],
)


@pytest.mark.parametrize(
    ("given", "chats", "sessions", "is_apart", "hears", "takes", "reads"),
    [
        (TRANSCRIBER, [], [], False, False, True, False),
        (HEARS, ["text"], ["text"], False, True, True, False),
        (READS, [], [], False, False, False, True),
        (SPEAKS, ["text"], ["text", "audio"], True, False, False, True),
        (CASCADE, ["text"], ["text", "audio"], True, False, True, True),
        (ONE, ["text", "audio"], ["text", "audio"], False, True, True, True),
    ],
    ids=["transcriber", "hears", "reads", "speaks", "cascade", "one"],
)
def test_what_chats_and_sessions_make_of_a_graph(
    given: StageGraph,
    chats: list[str],
    sessions: list[str],
    is_apart: bool,
    hears: bool,
    takes: bool,
    reads: bool,
) -> None:
    assert chat_outputs(given) == chats
    assert session_outputs(given) == sessions
    assert has_speech_apart(given) == is_apart
    assert chat_hears(given) == hears
    assert takes_speech(given) == takes
    assert reads_out(given) == reads


def write(folder: Path, config: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_asr", "audio_config": {}},
        {"model_type": "qwen3_asr", "thinker_config": {"audio_config": {}}},
    ],
)
def test_a_folder_of_qwen3_asr_is_served_as_a_transcriber(config: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "asr", config)
    assert pick_graph(folder, 0).file == GRAPHS / "vllm_transcriber.yaml"
    assert find_graph(folder).outputs == {"transcript": "transcriber"}


@pytest.mark.parametrize("config", [{"model_type": "qwen3"}, {"model_type": "qwen3_tts"}])
def test_a_transcriber_of_a_model_that_takes_no_audio_is_refused_by_its_stage(
    config: Any, tmp_path: Path
) -> None:
    folder = write(tmp_path / "text", config)
    with pytest.raises(GraphError) as caught:
        find_graph(str(GRAPHS / "vllm_transcriber.yaml"), folder)
    assert "stages.transcriber" in str(caught.value)
    assert config["model_type"] in str(caught.value)
    assert "takes no audio" in str(caught.value)

"""The graphs that the programs for GPUs write, and what they judge by."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from candidates import replicas_of, with_replicas
from gpu_media import KINDS, Requests
from judging import Answer
from ranks_table import Round, is_right, line_of
from realtime_turns import same_frames, with_talker_graphs

from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

PICTURE = np.zeros((4, 4, 3), np.uint8)
PARTS = {
    "long": [],
    "sound": ["text", "input_audio"],
    "seen": ["text", "image_url", "video_url"],
    "all": ["text", "image_url", "video_url", "input_audio"],
}


def graph_of(name: str) -> dict[str, Any]:
    """A graph file's content."""
    read: dict[str, Any] = yaml.safe_load((GRAPHS / name).read_text())
    return read


@pytest.mark.parametrize("where", ["0,0", "0,1", "0,1,1"])
def test_replicas_of_one_gpu_share_its_memory_and_seats(where: str, tmp_path: Path) -> None:
    graph, gpus = graph_of("qwen3_tts.yaml"), replicas_of(where)
    most = 1 if where == "0,1" else 2
    made = with_replicas(graph, gpus)
    for name, stage in made["stages"].items():
        assert stage["gpus"] == [[gpu] for gpu in gpus]
        before = graph["stages"][name]["engine"]
        for shared in {"kv_cache_memory_bytes", "max_num_seqs"} & before.keys():
            assert stage["engine"][shared] == before[shared] // most
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(made))
    assert load_graph(path).stages["talker"].num_replicas == len(gpus)


@pytest.mark.parametrize(("most", "last"), [(512, [448, 512]), (1024, [768, 1024])])
def test_a_talkers_graphs_end_at_the_asked_rows(most: int, last: list[int], tmp_path: Path) -> None:
    path = with_talker_graphs(GRAPHS / "qwen3_omni_1gpu_80gb.yaml", most, tmp_path)
    stages = yaml.safe_load(path.read_text())["stages"]
    sizes = stages["talker"]["engine"]["compilation_config"]["cudagraph_capture_sizes"]
    assert sizes[-2:] == last
    assert stages["thinker"] == graph_of("qwen3_omni_1gpu_80gb.yaml")["stages"]["thinker"]


def test_larger_graphs_of_a_talker_are_added(tmp_path: Path) -> None:
    path = with_talker_graphs(GRAPHS / "qwen3_omni_1gpu_80gb.yaml", 2048, tmp_path)
    talker = yaml.safe_load(path.read_text())["stages"]["talker"]
    sizes = talker["engine"]["compilation_config"]["cudagraph_capture_sizes"]
    assert sizes[-5:] == [1024, 1280, 1536, 1792, 2048]


def test_frames_are_equal_up_to_the_first_other_one() -> None:
    first = [Answer([1], [2], [[1], [2], [3], [4]]), Answer([1], [2], [[1], [2], [3], [4]])]
    found = [Answer([1], [2], [[1], [2], [9], [4]]), Answer([1], [2], [[9], [2], [3], [4]])]
    assert same_frames(first, first) == (2, 1.0)
    assert same_frames(found, first) == (1, 0.25)


def test_a_rank_whose_death_is_not_outlived_is_told_and_wrong() -> None:
    asked, one = argparse.Namespace(load_format="dummy"), Round("one", 1.0, 2.0, [PICTURE], 0, {})
    healed = Round("shard", 1.0, 2.0, [PICTURE], 0, {"kill": (0.1, 9.0), "memory": (1.0, 1.1)})
    lost = Round("shard", 1.0, 2.0, [PICTURE], 0, {"kill": "no picture again in 120 s"})
    assert is_right({"one": one, "shard": healed}, asked)
    assert not is_right({"one": one, "shard": lost}, asked)
    assert "kill: ended after 0.1 s, a picture after 9.0 s" in line_of(
        "shard", {"one": one, "shard": healed}, 2
    )
    assert "kill: failed: no picture again in 120 s" in line_of(
        "shard", {"one": one, "shard": lost}, 2
    )


@pytest.mark.parametrize("kind", KINDS)
def test_requests_with_media_differ_and_come_again_the_same(kind: str) -> None:
    asked = argparse.Namespace(long_words=9, side=64, video_frames=4, sound_seconds=1)
    requests = Requests(["one", "two", "three"], asked)
    first = requests.messages(kind, 0)
    assert requests.messages(kind, 0) == first
    assert requests.messages(kind, 1) != first
    parts = first[0]["content"]
    types = [part["type"] for part in parts] if kind != "long" else []
    assert types == PARTS[kind]

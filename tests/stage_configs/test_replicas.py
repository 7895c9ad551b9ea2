"""Replicas in a graph file: their names, their GPUs, what goes between them, what is refused."""

from pathlib import Path

import pytest
from support.gateway.serving import OMNI

from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.overrides import stage_override
from omnistage.stage_configs.replicas import number_of, stage_of

TEXT = """model: some/model
stages:
  thinker: {kind: qwen3_omni.thinker, gpus: [0]}
  talker:
    kind: qwen3_omni.talker
    gpus: [1]
    engine: {gpu_memory_utilization: 0.4}
  code2wav: {kind: qwen3_omni.code2wav}
edges:
  - {from: thinker, to: talker}
  - {from: talker, to: code2wav}
outputs: {text: thinker, audio: code2wav}
"""


def load(folder: Path, gpus: str, *overrides: str) -> StageGraph:
    path = folder / "graph.yaml"
    path.write_text(TEXT.replace("gpus: [1]", gpus))
    return load_graph(path, None, [stage_override(one) for one in overrides])


def refusal(folder: Path, gpus: str, *overrides: str) -> str:
    with pytest.raises(GraphError) as refused:
        load(folder, gpus, *overrides)
    return str(refused.value).removeprefix(f"{folder}/graph.yaml:")


def names_and_gpus(graph: StageGraph, stage: str) -> dict[str, tuple[int, ...]]:
    return {replica.name: replica.gpus for replica in graph.stages[stage].all_replicas}


def test_a_graph_without_replicas_has_its_stages_names() -> None:
    graph = StageGraph.model_validate(OMNI)
    assert list(graph.replicas) == list(graph.stages)
    assert graph.targets_of("thinker") == [(graph.edges[0], "talker")]
    assert graph.sources_of("code2wav") == [(graph.edges[1], "talker")]


def test_replicas_share_one_list_of_gpus_or_have_one_each(tmp_path: Path) -> None:
    shared = load(tmp_path, "gpus: [1]\n    replicas: 2")
    assert names_and_gpus(shared, "talker") == {"talker@0": (1,), "talker@1": (1,)}
    own = load(tmp_path, "gpus: [[1], [2], [4]]")
    assert names_and_gpus(own, "talker") == {"talker@0": (1,), "talker@1": (2,), "talker@2": (4,)}
    assert own.stages["talker"].num_replicas == 3
    assert names_and_gpus(load(tmp_path, "gpus: [[3]]"), "talker") == {"talker": (3,)}
    assert names_and_gpus(load(tmp_path, "replicas: 2"), "talker") == dict.fromkeys(
        ("talker@0", "talker@1"), ()
    )


def test_more_may_run_than_are_started(tmp_path: Path) -> None:
    graph = load(tmp_path, "gpus: [[1], [2]]\n    replicas: 1\n    max_replicas: 2")
    talker = graph.stages["talker"]
    assert (talker.num_replicas, talker.most_replicas) == (1, 2)
    assert [replica.name for replica in talker.all_replicas] == ["talker@0", "talker@1"]


def test_every_edge_goes_between_every_pair_of_replicas(tmp_path: Path) -> None:
    graph = load(tmp_path, "replicas: 2", "code2wav.replicas=3")
    ends = {(name, target) for name in graph.replicas for _, target in graph.targets_of(name)}
    talkers, vocoders = ("talker@0", "talker@1"), [f"code2wav@{n}" for n in range(3)]
    between = {(talker, vocoder) for talker in talkers for vocoder in vocoders}
    assert ends == between | {("thinker", talker) for talker in talkers}
    back = {(source, name) for name in graph.replicas for _, source in graph.sources_of(name)}
    assert back == ends


def test_a_name_says_its_stage_and_its_number() -> None:
    assert [(stage_of(name), number_of(name)) for name in ("talker", "talker@0", "talker@12")] == [
        ("talker", 0),
        ("talker", 0),
        ("talker", 12),
    ]


def test_a_command_line_says_it_by_the_stages_name_for_all_of_them(tmp_path: Path) -> None:
    graph = load(tmp_path, "gpus: [1]", "talker.replicas=2", "talker.max_num_seqs=3")
    assert len(graph.stages["talker"].all_replicas) == 2
    assert all(graph.spec_of(name).engine["max_num_seqs"] == 3 for name in ("talker@0", "talker@1"))
    assert "no stage 'talker@0'" in refusal(tmp_path, "replicas: 2", "talker@0.max_num_seqs=3")


def test_a_graph_with_replicas_survives_json(tmp_path: Path) -> None:
    graph = load(tmp_path, "gpus: [[1], [2]]\n    replicas: 1\n    max_replicas: 2")
    assert StageGraph.model_validate_json(graph.model_dump_json()) == graph


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ("gpus: [[1], [2]]\n    replicas: 3", "7: stages.talker.replicas: 3, but `gpus` has lists"),
        (
            "gpus: [[1], [2]]\n    replicas: 1\n    max_replicas: 3",
            "8: stages.talker.max_replicas: 3, but `gpus` has lists for 2; the two must be equal",
        ),
        (
            "replicas: 3\n    max_replicas: 2",
            "7: stages.talker.max_replicas: 2 is less than the 3 of `replicas`",
        ),
        ("replicas: 0", "6: stages.talker.replicas: must be greater than or equal to 1, not 0"),
        ("replicas: 65", "6: stages.talker.replicas: must be less than or equal to 64, not 65"),
        ("replicas: two", "6: stages.talker.replicas: must be an integer, not 'two'"),
        ("gpus: [[1], [2, -1]]", "6: stages.talker.gpus.1.1: must be greater than or equal to 0"),
        ("gpus: [[1], [2, 2]]", "6: stages.talker.gpus.1.1: GPU 2 is there twice"),
        ("gpus: [[1], []]", "6: stages.talker.gpus.1: a list for each replica has at least one"),
        ("gpus: [[1], 2]", "6: stages.talker.gpus.1: must be a list, not 2"),
        ("gpus: [[1], [2, 3]]", "6: stages.talker.gpus: 2 GPUs, but its engine uses 1"),
        ("replicas: 3\n    gpus: [1]", "4: stages.talker: the stages on GPU 1 want 1.20 of its"),
    ],
)
def test_what_does_not_agree_is_refused_by_line_and_key(
    gpus: str, says: str, tmp_path: Path
) -> None:
    assert refusal(tmp_path, gpus).startswith(says)


def test_the_memory_of_a_gpu_counts_each_copy_where_it_is(tmp_path: Path) -> None:
    load(tmp_path, "gpus: [[1], [2], [3]]")
    assert "GPU 1 want 1.20" in refusal(tmp_path, "gpus: [[1], [1], [1]]")

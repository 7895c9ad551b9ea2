"""Single keys of a graph file set from the command line: what they change, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.overrides import (
    Override,
    OverrideError,
    alias_override,
    any_override,
    default_override,
    name_override,
    stage_override,
)
from omnistage.stage_configs.pick import GRAPHS

TINY = GRAPHS / "qwen3_omni_tiny.yaml"
Read = Callable[[str], Override]


def changed(read: Read, *texts: str) -> StageGraph:
    return load_graph(TINY, "m", [read(text) for text in texts])


def test_a_key_of_a_stage_and_an_argument_of_its_engine_are_set() -> None:
    graph = changed(
        stage_override,
        *("thinker.max_model_len=8192", "talker.gpus=[1]", "thinker.engine.seed=3"),
        *("thinker.options.reasoning_parser=qwen3", "talker.environment.OMP_NUM_THREADS=4"),
        *("thinker.limit_mm_per_prompt.image=8", "code2wav.num_slots=2", "thinker.dtype="),
    )
    thinker, talker = graph.stages["thinker"], graph.stages["talker"]
    assert thinker.engine["max_model_len"] == 8192
    assert thinker.engine["seed"] == 3
    assert thinker.engine["dtype"] is None
    assert thinker.engine["limit_mm_per_prompt"] == {"image": 8, "audio": 64, "video": 1}
    assert thinker.options["reasoning_parser"] == "qwen3"
    assert thinker.options["tool_parser"] == "hermes"
    assert talker.gpus == (1,)
    assert graph.stages["code2wav"].engine == {"num_slots": 2}


def test_what_stages_share_by_an_alias_is_changed_for_one_of_them_alone() -> None:
    graph = changed(stage_override, "talker.environment.OMP_NUM_THREADS=4")
    threads = {name: one.environment["OMP_NUM_THREADS"] for name, one in graph.stages.items()}
    assert threads == {"thinker": 1, "talker": 4, "code2wav": 1}


def test_any_other_key_of_the_file_is_set() -> None:
    graph = changed(
        any_override,
        *("deadlines.start_s=60", "edges.1.chunk.steady=50", "edges.0.connector.arena_mb=8"),
        *("edges.0.chunk=whole", "stages.talker.engine.max_num_seqs=2", "model=other"),
    )
    assert graph.deadlines.start_s == 60
    assert graph.edges[1].chunk_sizes == [2, 4, 8, 50]
    assert graph.edges[0].connector.options == {"arena_mb": 8}
    assert graph.edges[0].chunk == "whole"
    assert graph.stages["talker"].engine["max_num_seqs"] == 2
    assert graph.model == "other"


def test_of_two_values_for_one_key_the_later_holds() -> None:
    graph = changed(stage_override, "talker.max_num_seqs=2", "talker.max_num_seqs=3")
    assert graph.stages["talker"].engine["max_num_seqs"] == 3


def test_default_sampling_is_a_stage_s_own() -> None:
    graph = changed(default_override, "talker.temperature=0.7", "thinker.top_k=5")
    assert graph.stages["talker"].default_sampling_params.given == {"temperature": 0.7}
    assert graph.stages["thinker"].default_sampling_params.given == {"top_k": 5}
    assert graph.stages["code2wav"].default_sampling_params.given == {}


def test_a_model_has_the_names_that_it_is_given_or_its_own() -> None:
    named = load_graph(TINY, "m", [name_override(["a", "b"])])
    assert (named.served_name, named.served_names, named.model) == ("a", ("a", "b"), "m")
    assert load_graph(TINY, "m").served_names == ("m",)
    assert changed(any_override, "served_model_name=a").served_names == ("a",)
    assert changed(alias_override, "Alloy=ethan").voice_called("ALLOY") == "ethan"


def test_a_graph_file_may_have_them_itself(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(
        "model: m\nserved_model_name: [a, b]\nstages:\n  text:\n    kind: vllm.text\n"
        "    default_sampling_params: {temperature: 0.5}\noutputs: {text: text}\n"
    )
    graph = load_graph(path)
    assert graph.served_names == ("a", "b")
    assert graph.stages["text"].default_sampling_params.given == {"temperature": 0.5}
    path.write_text(path.read_text().replace("temperature", "temprature"))
    with pytest.raises(GraphError, match=r"graph.yaml:6: .*temprature: unknown key; did you mean"):
        load_graph(path)


ENGINE = "stages.thinker.engine"
REFUSED: list[tuple[Read, str, str]] = [
    (stage_override, "thinker.max_model_lenn=5", "did you mean 'max_model_len'?"),
    (stage_override, "thinker.gpu=[0]", "unknown key 'gpu'; did you mean 'gpus'?"),
    (stage_override, "code2wav.slots=3", "unknown key 'slots'; did you mean 'num_slots'?"),
    (stage_override, "thinkr.gpus=[0]", "no stage 'thinkr'; did you mean 'thinker'?"),
    (stage_override, "thinker=5", "must be NAME.KEY=VALUE"),
    (stage_override, "thinker.gpus", "must be NAME.KEY=VALUE"),
    (stage_override, "thinker..gpus=[0]", "must be NAME.KEY=VALUE"),
    (stage_override, "thinker.gpus=zero", "stages.thinker.gpus: must be a list, not 'zero'"),
    (stage_override, "thinker.max_num_seqs=0", f"{ENGINE}.max_num_seqs: 0 is no size"),
    (stage_override, "thinker.gpus=[0,1]", "2 GPUs, but its engine uses 1"),
    (stage_override, "thinker.kind=vllm.texts", "unknown kind 'vllm.texts'; did you mean"),
    (stage_override, "thinker.dtype.x=1", f"{ENGINE}.dtype is 'float32', which has no keys"),
    (stage_override, "thinker.seed=[", "the value is no YAML"),
    (stage_override, "thinker.seed=!!python/name:os.system x", "the value is no YAML"),
    (alias_override, "alloy", "must be NAME=VOICE, such as alloy=ethan"),
    (alias_override, "=ethan", "must be NAME=VOICE, such as alloy=ethan"),
    (any_override, "edges.0.chunk.stedy=5", "edges.0.chunk.stedy: unknown key; did you mean"),
    (any_override, "edges.7.chunk=whole", "the numbers of its items are 0 to 1"),
    (any_override, "edge.0.chunk=whole", "unknown key; did you mean 'edges'?"),
    (any_override, "deadlines.start_s=-1", "deadlines.start_s: must be greater than 0, not -1"),
    (any_override, "outputs.text=talker", "stage 'talker' does not make 'text'"),
    (any_override, "stages.thinke.gpus=[0]", "no stage 'thinke'; did you mean 'thinker'?"),
    (any_override, "served_model_name=[a, a]", "'a' is there twice"),
    (default_override, "talker.temperature=7", "must be less than or equal to 2, not 7"),
    (default_override, "talker.temprature=1", "unknown key; did you mean 'temperature'?"),
    (default_override, "talker.temperature=hot", "must be a number, not 'hot'"),
    (default_override, "code2wav.top_k=1", "is refused: this stage samples nothing"),
]


@pytest.mark.parametrize(("read", "text", "says"), REFUSED, ids=[case[1] for case in REFUSED])
def test_a_refusal_begins_with_the_flag_as_it_was_typed(read: Read, text: str, says: str) -> None:
    flags: dict[Read, str] = {
        alias_override: "--voice-alias",
        stage_override: "--stage",
        any_override: "--set",
        default_override: "--set-default",
    }
    with pytest.raises((GraphError, OverrideError)) as refused:
        changed(read, text)
    message = str(refused.value)
    assert message.startswith(f"{flags[read]} {text}: ")
    assert says in message


def test_what_does_not_fit_together_names_all_flags_that_may_be_wrong() -> None:
    with pytest.raises(GraphError) as refused:
        changed(default_override, "talker.min_tokens=3", "talker.max_tokens=2")
    assert "--set-default talker.min_tokens=3, --set-default talker.max_tokens=2: " in (
        str(refused.value)
    )
    assert "min_tokens 3 exceeds max_tokens 2" in str(refused.value)


TWO_GPUS = """\
stages:
  text: {kind: vllm.text, gpus: [0], engine: {tensor_parallel_size: 1}}
outputs: {text: text}
"""


def test_an_override_that_does_not_fit_the_rest_of_the_file_is_blamed_for_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(TWO_GPUS)
    sizes = stage_override("text.tensor_parallel_size=2")
    with pytest.raises(GraphError) as refused:
        load_graph(path, "m", [sizes])
    assert str(refused.value).startswith("with --stage text.tensor_parallel_size=2: stages.text")
    assert "1 GPU, but its engine uses 2" in str(refused.value)
    assert load_graph(path, "m", [sizes, stage_override("text.gpus=[0, 1]")])


def test_a_file_that_is_wrong_by_itself_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(TWO_GPUS.replace("text: text}", "txt: text}"))
    with pytest.raises(GraphError, match=r"graph.yaml:3: outputs.txt"):
        load_graph(path, "m", [stage_override("text.max_model_len=8")])


def test_an_override_may_cure_a_file_that_is_wrong_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(TWO_GPUS.replace("size: 1", "size: 2"))
    with pytest.raises(GraphError):
        load_graph(path, "m")
    assert load_graph(path, "m", [stage_override("text.tensor_parallel_size=1")])

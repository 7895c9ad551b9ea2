"""Graphs: what is refused and with which words, and what the shipped ones say."""

from dataclasses import replace
from pathlib import Path

import pytest

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stage_configs.pick import GRAPHS

GOOD = """\
model: some/model
stages:
  thinker:
    kind: qwen3_omni.thinker
    gpus: [0]
    engine: {gpu_memory_utilization: 0.7, additional_config: {goes: here}}
  talker: {kind: qwen3_omni.talker, gpus: [0], engine: {gpu_memory_utilization: 0.3}}
  code2wav: {kind: qwen3_omni.code2wav}
edges:
  - {from: thinker, to: talker, connector: shm}
  - from: talker
    to: code2wav
    connector: {name: shm, arena_mb: 8}
    chunk: {first: 2, ramp: [4, 8], steady: 25}
outputs: {text: thinker, audio: code2wav}
"""


def load(folder: Path, text: str) -> StageGraph:
    path = folder / "graph.yaml"
    path.write_text(text)
    return load_graph(path)


def test_a_good_graph(tmp_path: Path) -> None:
    graph = load(tmp_path, GOOD)
    assert graph.entries(graph.outputs) == ["thinker"]
    assert graph.order == ["thinker", "talker", "code2wav"]
    assert graph.stages["thinker"].engine["additional_config"] == {"goes": "here"}
    first, second = graph.edges
    assert (first.source, first.target, first.chunk_sizes) == ("thinker", "talker", [1, 1])
    assert second.connector.options == {"arena_mb": 8}
    assert second.chunk_sizes == [2, 4, 8, 25]
    assert graph.incoming("talker") == [first]
    assert graph.outgoing("talker") == [second]


def test_a_path_has_only_what_its_outputs_need(tmp_path: Path) -> None:
    graph = load(tmp_path, GOOD)
    assert graph.path({"text"}) == ["thinker"]
    assert graph.path({"text", "audio"}) == ["thinker", "talker", "code2wav"]


def test_whole_is_a_chunking_without_sizes(tmp_path: Path) -> None:
    graph = load(tmp_path, GOOD.replace("{first: 2, ramp: [4, 8], steady: 25}", "whole"))
    assert graph.edges[1].chunk_sizes == []


def test_a_graph_survives_json(tmp_path: Path) -> None:
    graph = load(tmp_path, GOOD)
    assert StageGraph.model_validate_json(graph.model_dump_json()) == graph


def test_the_model_can_be_given_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(GOOD)
    assert load_graph(path, "another").model == "another"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("outputs:", "output:", 15, "output: unknown key; did you mean 'outputs'?"),
        ("{first: 2,", "{frist: 2,", 14, "edges.1.chunk.frist: unknown key; did you mean 'first'?"),
        ("connector: shm", "connector: smh", 10, "unknown connector 'smh'"),
        ("from: talker\n", "frm: talker\n", 11, "edges.1.frm: unknown key; did you mean 'from'?"),
        ("{from: thinker, to: talker,", "{from: thinker, to: thinker,", 9, "cycle"),
        ("{kind: qwen3_omni.code2wav}", "{}", 8, "stages.code2wav.kind: the key is missing"),
        (
            "audio: code2wav",
            "audio: talker",
            15,
            "stage 'talker' does not make 'audio'; it makes no output",
        ),
        (
            "audio: code2wav",
            "image: code2wav",
            15,
            "outputs.image: stage 'code2wav' does not make 'image'",
        ),
        ("audio: code2wav", "audio: vocoder", 15, "outputs.audio: no stage 'vocoder'"),
        (", audio: code2wav", "", 8, "no output needs stage 'code2wav'"),
        ("{text: thinker, audio: code2wav}", "{}", 15, "outputs: a graph has at least one output"),
        ("utilization: 0.3", "utilization: 0.4", 7, "the stages on GPU 0 want 1.10 of its memory"),
        ("utilization: 0.3", "utilization: much", 7, "'much' is no share of a GPU's memory"),
        ("gpus: [0]\n", "gpus: [-1]\n", 5, "stages.thinker.gpus.0"),
        (
            "ramp: [4, 8]",
            "ramp: [0, 8]",
            14,
            "edges.1.chunk.ramp.0: must be greater than or equal to 1",
        ),
        ("  talker: {", "  gateway: {", 7, "and not 'gateway'"),
        ("model: some/model", "model: [", 3, "expected"),
        ("    to: code2wav", "    to: talker", 9, "cycle"),
        (
            "    to: code2wav\n",
            "    to: code2wav\n    hidden_states: all\n",
            13,
            "edges.1.hidden_states: the edge carries codes; hidden states are rows",
        ),
        (
            "from: talker\n",
            "from: thinker\n",
            11,
            "edges.1: nothing to carry: stage 'thinker' makes rows and text and tokens; "
            "stage 'code2wav' takes codes",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    assert old in GOOD
    with pytest.raises(GraphError) as caught:
        load(tmp_path, GOOD.replace(old, new, 1))
    message = str(caught.value)
    assert f"graph.yaml:{line}: " in message
    assert words in message


def test_two_entries_and_double_edges_are_refused(tmp_path: Path) -> None:
    double = GOOD.replace("outputs:", "  - {from: thinker, to: talker}\noutputs:")
    with pytest.raises(GraphError, match=r":15: edges\.2: a second edge from thinker to talker"):
        load(tmp_path, double)
    lonely = GOOD.replace("  - {from: thinker, to: talker, connector: shm}\n", "")
    with pytest.raises(GraphError, match=r"edges: stage 'talker' needs an edge that brings it"):
        load(tmp_path, lonely)


@pytest.mark.parametrize("text", ["", "- a\n- list\n", "just words\n", "a: \x00\n"])
def test_what_is_no_graph_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(GraphError, match=r"graph\.yaml:1: "):
        load(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"none\.yaml"):
        load_graph(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(GRAPHS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_graph_loads(path: Path) -> None:
    graph = load_graph(path, "some/model")
    assert graph.path(set(graph.outputs)) == graph.order


MIXED = """\
model: some/model
stages:
  thinker: {kind: qwen3_omni.thinker}
  talker: {kind: qwen3_omni.talker}
  code2wav: {kind: qwen3_omni.code2wav}
  dit: {kind: diffusers, model: some/pipeline}
edges:
  - {from: thinker, to: talker}
  - {from: talker, to: code2wav}
  - {from: thinker, to: dit}
outputs: {text: thinker, audio: code2wav, image: dit}
"""


def test_an_edge_carries_what_both_of_its_ends_know(tmp_path: Path) -> None:
    graph = load(tmp_path, MIXED)
    carried = {(edge.source, edge.target): set(graph.carried(edge)) for edge in graph.edges}
    assert carried == {
        ("thinker", "talker"): {Payload.TOKENS, Payload.ROWS},
        ("talker", "code2wav"): {Payload.CODES},
        ("thinker", "dit"): {Payload.TEXT},
    }
    split = load_graph(GRAPHS / "qwen_image_split.yaml")
    assert [set(split.carried(edge)) for edge in split.edges] == [{Payload.ARGUMENTS}]


def test_a_stage_with_two_edges_from_it_has_the_paths_of_its_outputs(tmp_path: Path) -> None:
    graph = load(tmp_path, MIXED)
    assert graph.path({"text"}) == ["thinker"]
    assert graph.path({"text", "image"}) == ["thinker", "dit"]
    assert graph.path({"text", "audio"}) == ["thinker", "talker", "code2wav"]
    assert set(graph.path(graph.outputs)) == set(graph.stages)
    assert graph.entries(graph.outputs) == ["thinker"]


def test_an_output_waits_for_the_text_that_its_stage_is_given_whole(tmp_path: Path) -> None:
    graph = load(tmp_path, MIXED)
    assert graph.waits_for("image") == {"text"}
    assert graph.waits_for("audio") == graph.waits_for("text") == set()


def test_an_image_waits_for_the_words_that_may_take_its_place_and_can_be_asked_for_alone() -> None:
    graph = load_graph(GRAPHS / "omnigen2.yaml")
    assert graph.waits_for("image") == {"text"}
    assert graph.waits_for("text") == graph.writers("image") == set()
    assert load_graph(GRAPHS / "qwen_image_split.yaml").waits_for("image") == set()


def test_a_stages_own_model_overrides_the_graphs(tmp_path: Path) -> None:
    graph = load(tmp_path, MIXED)
    assert graph.model_of("dit") == "some/pipeline"
    assert graph.model_of("talker") == "some/model"


def test_two_entries_are_fine_where_each_output_has_one(tmp_path: Path) -> None:
    graph = load(tmp_path, MIXED.replace("  - {from: thinker, to: dit}\n", ""))
    assert graph.entries({"text", "image"}) == ["thinker", "dit"]
    assert graph.entry_of("image") == "dit"
    assert graph.entry_of("audio") == "thinker"


JOINING = """\
model: some/model
stages: {a: {kind: a}, b: {kind: b}, c: {kind: c}, d: {kind: d}}
edges: [{from: a, to: b}, {from: a, to: c}, {from: b, to: d}, {from: c, to: d}]
outputs: {text: d}
"""


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds that make text and codes; d joins."""
    text, codes = payloads(Payload.TEXT), payloads(Payload.CODES)
    for name in "abcd":
        kind = Kind("", frozenset({"text"}), makes=text | codes, takes=(text,), joins=name == "d")
        monkeypatch.setitem(KINDS, name, kind)
    both = Kind("", frozenset({"text"}), makes=text | codes, takes=(text, codes))
    monkeypatch.setitem(KINDS, "either", both)


@pytest.mark.usefixtures("joining")
def test_a_stage_that_joins_has_several_edges_to_it_and_another_has_not(tmp_path: Path) -> None:
    graph = load(tmp_path, JOINING)
    assert graph.path({"text"}) == ["a", "b", "c", "d"]
    message = "stage 'd' has 2 edges to it, from b and c; a stage of kind b takes one"
    with pytest.raises(GraphError, match=f"graph.yaml:3: edges.3: {message}"):
        load(tmp_path, JOINING.replace("kind: d", "kind: b"))


@pytest.mark.usefixtures("joining")
def test_an_output_with_two_entries_is_refused(tmp_path: Path) -> None:
    text = JOINING.replace("{from: a, to: c}, ", "")
    with pytest.raises(GraphError, match=r"outputs.text: an output has one entry; text has a, c"):
        load(tmp_path, text)


@pytest.mark.usefixtures("joining")
def test_where_the_ends_have_a_choice_the_edge_says_what_it_carries(tmp_path: Path) -> None:
    text = JOINING.replace("c: {kind: c}", "c: {kind: either}")
    with pytest.raises(GraphError, match=r"edges.1: `carries` must choose text, or codes: stage"):
        load(tmp_path, text)
    graph = load(tmp_path, text.replace("{from: a, to: c}", "{from: a, to: c, carries: [codes]}"))
    assert set(graph.carried(graph.edges[1])) == {Payload.CODES}
    wrong = text.replace("{from: a, to: c}", "{from: a, to: c, carries: [rows]}")
    with pytest.raises(GraphError, match=r"edges.1.carries: rows cannot be carried: stage 'a'"):
        load(tmp_path, wrong)


def test_what_is_drawn_of_words_needs_the_words_as_an_output(tmp_path: Path) -> None:
    text = MIXED.replace(
        "{text: thinker, audio: code2wav, image: dit}", "{audio: code2wav, image: dit}"
    )
    message = "outputs.image: image is drawn of what thinker writes, so `text: thinker` is one too"
    with pytest.raises(GraphError, match=message):
        load(tmp_path, text)


def test_a_folder_of_voices_is_an_option_of_the_stages_that_keep_something_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load(tmp_path, GOOD)
    assert graph.with_voices(tmp_path) == graph
    monkeypatch.setitem(
        KINDS, "qwen3_omni.talker", replace(KINDS["qwen3_omni.talker"], stores_voices=True)
    )
    changed = graph.with_voices(tmp_path)
    assert changed.stages["talker"].options == {"voices": str(tmp_path)}
    assert not changed.stages["thinker"].options
    written = graph.model_copy(
        update={
            "stages": {
                **graph.stages,
                "talker": graph.stages["talker"].model_copy(update={"options": {"voices": "own"}}),
            }
        }
    )
    assert written.with_voices(tmp_path).stages["talker"].options == {"voices": "own"}

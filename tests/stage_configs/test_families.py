"""Families of installed packages: their kinds, and what happens when one of them is broken."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.installed import Installed
from typer.testing import CliRunner

from omnistage.connectors.registry import Unusable
from omnistage.server import cli
from omnistage.stage_configs.families import FAMILIES, KINDS, Families, Kinds
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.kinds import Kind
from omnistage.stage_configs.pick import pick_graph

SONG = """
FAMILY = Family("song", {"song": Kind("song:Song", frozenset({"audio"})),
                         "song.writer": Kind("song:Writer", frozenset({"text"}))})
"""
BROKEN = "import no_such_library"
GRAPH = "model: m\nstages:\n  one: {kind: %s}\noutputs: {text: one}\n"
runner = CliRunner()


@pytest.fixture
def graph(tmp_path: Path) -> Callable[[str], Path]:
    """A graph file of one stage of a kind."""

    def written(kind: str) -> Path:
        path = tmp_path / "graph.yaml"
        path.write_text(GRAPH % kind)
        return path

    return written


def test_kinds_of_a_package_are_kinds(installed: Installed, graph: Callable[[str], Path]) -> None:
    installed.family("a-song", "song", SONG)
    assert KINDS["song.writer"].path == "song:Writer"
    assert {"song", "song.writer", "vllm.text", "diffusers"} <= set(KINDS)
    assert load_graph(graph("song.writer")).stages["one"].kind == "song.writer"


def test_a_kind_that_no_family_has_is_unknown(installed: Installed) -> None:
    installed.family("a-song", "song", SONG)
    for kind in ("song.reader", "dance", "dance.writer", ""):
        assert kind not in KINDS


def test_a_kind_may_be_set_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = Kinds(Families())
    mine = Kind("mine:Mine", frozenset({"text"}))
    monkeypatch.setitem(kinds, "vllm.text", mine)
    monkeypatch.setitem(kinds, "mine", mine)
    assert kinds["vllm.text"] == kinds["mine"] == mine
    assert "mine" in set(kinds)
    assert len(kinds) == len(Kinds(Families())) + 1
    del kinds["vllm.text"]
    assert kinds["vllm.text"] != mine


def test_a_broken_family_is_told_where_its_kind_is_asked_for_and_the_others_work(
    installed: Installed, graph: Callable[[str], Path]
) -> None:
    installed.family("a-song", "song", BROKEN)
    assert load_graph(graph("vllm.text")).stages["one"].kind == "vllm.text"
    with pytest.raises(GraphError) as no:
        load_graph(graph("song.writer"))
    cause = "cannot be used: ModuleNotFoundError: No module named 'no_such_library'"
    named = f"'song' of omnistage.families (package a-song 1.0) {cause}"
    assert str(no.value).endswith(f"graph.yaml:3: stages.one.kind: {named}")
    with pytest.raises(GraphError, match=r"unknown kind 'vllm\.txt'; did you mean 'vllm\.text'"):
        load_graph(graph("vllm.txt"))


def test_two_families_of_one_name_are_refused_by_the_names_of_both_packages(
    installed: Installed, graph: Callable[[str], Path]
) -> None:
    installed.family("a-song", "song", SONG)
    installed.family("another-song", "song", SONG)
    with pytest.raises(GraphError) as no:
        load_graph(graph("song.writer"))
    assert "a-song 1.0" in str(no.value)
    assert "another-song 1.0" in str(no.value)
    assert load_graph(graph("vllm.text"))


def test_a_kind_of_two_families_is_refused_by_the_names_of_both_packages(
    installed: Installed,
) -> None:
    installed.family("a-song", "song", SONG)
    kinds = '{"dance": Kind("d:D", frozenset()), "song.writer": Kind("d:W", frozenset())}'
    installed.family("a-dance", "dance", f'FAMILY = Family("dance", {kinds})')
    with pytest.raises(Unusable) as no:
        _ = KINDS["dance"]
    assert "'dance' of omnistage.families (package a-dance 1.0) cannot be used" in str(no.value)
    sentence = "its kind 'song.writer' begins with the name of 'song' of omnistage.families"
    assert f"{sentence} (package a-song 1.0)" in str(no.value)
    assert KINDS["song.writer"].path == "song:Writer"


def test_a_family_has_the_name_of_its_entry_point(installed: Installed) -> None:
    installed.family("a-song", "tune", SONG)
    with pytest.raises(Unusable, match=r"package a-song 1\.0.* it calls itself 'song'"):
        FAMILIES.load("tune")


PICKS = """
FAMILY = Family("song", {}, pick=lambda checkpoint, gpus: (
    Picked(%r) if checkpoint.config.get("model_type") == "song" else None))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "song"}))
    return tmp_path


def test_a_family_that_knows_a_model_comes_before_one_that_takes_any(
    installed: Installed, model: Path
) -> None:
    assert pick_graph(str(model), 0).is_last_resort
    installed.family("a-song", "song", PICKS % "song.yaml")
    assert str(pick_graph(str(model), 0).file) == "song.yaml"


def test_a_model_of_two_families_is_refused_by_the_names_of_both(
    installed: Installed, model: Path
) -> None:
    installed.family("a-song", "song", PICKS % "song.yaml")
    installed.family("a-tune", "tune", (PICKS % "tune.yaml").replace('"song", {}', '"tune", {}'))
    with pytest.raises(GraphError, match=r"a-song 1\.0.* and .*a-tune 1\.0.*: name a graph file"):
        pick_graph(str(model), 0)


def test_a_family_that_fails_at_a_model_leaves_it_to_the_others(
    installed: Installed, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    installed.family("a-song", "song", 'FAMILY = Family("song", {}, pick=lambda *_: 1 / 0)')
    assert pick_graph(str(model), 0).file.name == "vllm_text.yaml"
    assert "(package a-song 1.0) failed at" in caplog.text


def test_a_model_of_a_broken_family_is_served_otherwise_with_a_warning(
    installed: Installed, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    installed.family("a-song", "song", BROKEN)
    assert pick_graph(str(model), 0).file.name == "vllm_text.yaml"
    assert "(package a-song 1.0) cannot be used" in caplog.text


def test_a_configuration_that_is_no_json_is_told(model: Path) -> None:
    (model / "config.json").write_text("{")
    with pytest.raises(GraphError, match=r"config\.json is no JSON: "):
        pick_graph(str(model), 0)


TINY_AND_BENCH = """
FAMILY = Family(%r, {}, tiny={"song": TinyModel("%s:write")}, benches={"tempo": "%s:tempo"})

def write(folder, seed):
    folder.mkdir()
    (folder / "seed").write_text(str(seed))

def tempo(target: str, batch: int = 1) -> None:
    "How fast it sings."
    if target == "nothing":
        raise ValueError("nothing sings")
    print(target * batch)
"""


def test_a_family_writes_tiny_models_and_brings_benches(
    installed: Installed, tmp_path: Path
) -> None:
    installed.family("a-song", "song", TINY_AND_BENCH % ("song", "a_song", "a_song"))
    written = runner.invoke(cli.app, ["tiny", "song", str(tmp_path / "out"), "--seed", "7"])
    assert written.exit_code == 0, written.output
    assert (tmp_path / "out" / "seed").read_text() == "7"
    real = runner.invoke(cli.app, ["tiny", "song", str(tmp_path / "real"), "--real-size"])
    assert (real.exit_code, real.output) == (1, "error: song has no real size here\n")
    assert "song" in runner.invoke(cli.app, ["tiny", "--help"]).output
    assert "How fast it sings." in runner.invoke(cli.app, ["bench", "--help"]).output
    assert runner.invoke(cli.app, ["bench", "tempo", "la", "--batch", "2"]).output == "lala\n"
    refused = runner.invoke(cli.app, ["bench", "tempo", "nothing"])
    assert (refused.exit_code, refused.output) == (1, "error: nothing sings\n")


def test_a_tiny_model_and_a_bench_of_two_families_are_refused_by_the_names_of_both(
    installed: Installed, tmp_path: Path
) -> None:
    installed.family("a-song", "song", TINY_AND_BENCH % ("song", "a_song", "a_song"))
    installed.family("a-tune", "tune", TINY_AND_BENCH % ("tune", "a_tune", "a_tune"))
    for command in (["tiny", "song", str(tmp_path / "out")], ["bench", "tempo", "la"]):
        refused = runner.invoke(cli.app, command)
        assert refused.exit_code == 1
        assert "is of two families" in refused.output
        assert "a-song 1.0" in refused.output
        assert "a-tune 1.0" in refused.output


def test_an_unknown_tiny_model_tells_of_broken_families(
    installed: Installed, tmp_path: Path
) -> None:
    installed.family("a-song", "song", BROKEN)
    refused = runner.invoke(cli.app, ["tiny", "song", str(tmp_path / "out")])
    assert refused.exit_code == 1
    assert "unknown model 'song'" in refused.output
    assert "(package a-song 1.0) cannot be used" in refused.output


def test_metadata_without_any_family_is_told_with_the_cure(
    installed: Installed, model: Path, graph: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FAMILIES, "_group", "omnistage.nothing")
    with pytest.raises(GraphError, match="install omnistage again"):
        pick_graph(str(model), 0)
    with pytest.raises(GraphError, match="install omnistage again"):
        load_graph(graph("vllm.text"))

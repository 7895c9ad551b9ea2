"""Measured figures: read, refused, and the same as in the pages that they name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from omnistage.server.cli.planning.gpus import known_kinds
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.figures import (
    DecoderFigures,
    NoFigures,
    WriterFigures,
    all_figures,
    figures_of,
    read_figures,
)
from omnistage.stage_configs.graph_file import load_graph

ROOT = Path(__file__).parents[2]
HISTORY = (ROOT / "docs" / "history" / "performance.md").read_text()
NOW = (ROOT / "docs" / "performance.md").read_text()
MEMORY = (ROOT / "docs" / "memory.md").read_text()
OMNI = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
FILES = [path for _, family in FAMILIES.usable() for path in family.figures]


def stage(name: str) -> Any:
    return next(one for one in figures_of(OMNI).stages if one.name == name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_figures_are_of_stages_in_their_graphs_on_a_known_gpu(path: Path) -> None:
    figures = read_figures(path)
    assert figures.gpu in known_kinds()
    for name in (figures.graphs.cell, figures.graphs.split):
        graph = load_graph(figures.graph(name))
        assert [one.name for one in figures.stages] == list(graph.order)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_figure_has_a_source_that_exists(path: Path) -> None:
    figures = read_figures(path)
    said = " ".join(source.figure for source in figures.sources)
    named = [figure for one in figures.stages for figure in (one.name, *_measured(one))]
    for figure in (*named, "share", "weights_gb", "kv_bytes", *type(figures.gateway).model_fields):
        assert figure in said, figure
    for source in figures.sources:
        pages = re.findall(r"docs/[\w/]+\.md", source.table)
        assert pages or source.table.startswith("none"), source
        for page in pages:
            text = (ROOT / page).read_text()
            titles = re.findall(r'"([^"]+)"', source.table)
            assert all(re.search(rf"^#+ {re.escape(one)}$", text, re.M) for one in titles), source


def _measured(one: Any) -> list[str]:
    return ["decode_ms"] if isinstance(one, DecoderFigures) else ["step_ms", "prompt_ms"]


def test_the_talker_s_steps_are_those_of_the_page() -> None:
    (shown,) = re.findall(r"The bridge, a talker's step with it.*?64", NOW, re.DOTALL)
    found = re.findall(r"([\d.]+) over [\d.]+ (?:ms )?at (\d+)", " ".join(shown.split()))
    assert stage("talker").step_ms == {int(rows): float(ms) for ms, rows in found}


def test_code2wav_s_decodes_are_those_of_the_page() -> None:
    title = "^## code2wav with torch's transformer$"
    (part,) = re.findall(rf"{title}(.*?)(?:^## |\Z)", HISTORY, re.DOTALL | re.M)
    rows = re.findall(r"^\| (\d+) \| (.*) \| [\d.]+ \|$", part, re.M)  # the last is of before
    decoder = stage("code2wav")
    assert isinstance(decoder, DecoderFigures)
    assert decoder.decode_ms == {
        int(frames): dict(zip((1, 8, 16, 32, 64), map(float, times.split(" | ")), strict=True))
        for frames, times in rows
    }
    assert len(rows) == 6


def test_the_thinker_s_steps_are_those_of_their_formula() -> None:
    thinker = stage("thinker")
    assert isinstance(thinker, WriterFigures)
    assert "5.1 ms alone" in " ".join(HISTORY.split())
    (source,) = [one for one in figures_of(OMNI).sources if one.figure.endswith("beyond 1")]
    assert source.command.startswith("5.1 + 12.1 x (1 - (15/16)^rows - 1/16)")
    for rows, ms in thinker.step_ms.items():
        assert ms == pytest.approx(5.1 + 12.1 * (1 - (15 / 16) ** rows - 1 / 16), abs=0.06)


def test_what_a_request_waits_before_the_thinker_is_that_of_the_timeline() -> None:
    gateway = figures_of(OMNI).gateway
    rows = re.findall(r"^\| (\w[\w ]*) \| [\w ]+ \| ([\d.]+) \| [\d.]+ \|$", HISTORY, re.M)
    times = {name: float(ms) for name, ms in rows}
    before = times["request"] + times["thinker"] + times["prompt"]
    assert gateway.before_ms == pytest.approx(before)
    assert gateway.after_ms == times["samples"]


def test_weights_and_caches_are_those_of_the_layouts() -> None:
    for one in figures_of(OMNI).stages:
        (shown,) = re.findall(
            rf"^\| (?:the )?{one.name}'s weights \|.*\| ([\d.]+) \|$", MEMORY, re.M
        )
        assert one.weights_gb == float(shown)
        if isinstance(one, WriterFigures):
            assert f"{one.kv_bytes:,}" in MEMORY


def test_a_model_without_figures_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(NoFigures, match=rf"no measured figures of some/model; .*: {OMNI}"):
        figures_of("some/model")


def test_a_folder_is_known_by_its_configuration_and_a_tiny_one_is_another(tmp_path: Path) -> None:
    text = {"hidden_size": 2048, "num_hidden_layers": 48, "num_experts": 128}
    config = {"model_type": "qwen3_omni_moe", "enable_audio_output": True}
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "thinker_config": {"text_config": text}})
    )
    assert figures_of(str(tmp_path)) == figures_of(OMNI)
    small = {**text, "hidden_size": 64}
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "thinker_config": {"text_config": small}})
    )
    with pytest.raises(NoFigures, match="no measured figures"):
        figures_of(str(tmp_path))


def test_the_configuration_is_that_of_the_real_model() -> None:
    from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config

    config: Any = real_config().to_dict()
    for key, value in figures_of(OMNI).config.items():
        found = config
        for part in key.split("."):
            found = found[part]
        assert found == value, key


def test_a_file_that_is_wrong_says_where(tmp_path: Path) -> None:
    wrong = yaml.safe_load(FILES[0].read_text())
    wrong["answer"]["frames"] = 0
    path = tmp_path / "figures.yaml"
    path.write_text(yaml.safe_dump(wrong))
    with pytest.raises(NoFigures, match=r"figures\.yaml: answer\.frames: "):
        read_figures(path)
    with pytest.raises(NoFigures, match=r"none\.yaml: cannot be read"):
        read_figures(tmp_path / "none.yaml")


def test_there_are_figures() -> None:
    assert OMNI in {name for one in all_figures() for name in one.models}

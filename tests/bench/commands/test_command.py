"""`omnistage bench serve` as a person calls it, against a server that answers at once."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.bench.fake_openai import MODEL, FakeOpenAI, Script
from support.ports import refusing_port
from typer.testing import CliRunner

from omnistage.bench.report import Report
from omnistage.server import cli

SPEECH = Script(text_s=(0.0, 0.0), packets=((0.0, 0.4), (0.0, 0.8)))
runner = CliRunner(env={"COLUMNS": "120"})


def plain(text: str) -> str:
    """Without colours and frames, and as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[─-╿]", " ", text).split())


def test_levels_are_shown_and_written(tmp_path: Path) -> None:
    fake = FakeOpenAI(SPEECH)
    json_file, plot = tmp_path / "a.json", tmp_path / "a.svg"
    with fake.running() as url:
        arguments = ["bench", "serve", url, "--concurrency", "1,3", "--requests", "6"]
        arguments += ["--warmups", "1", "--modalities", "text,audio", "--frames", "15"]
        arguments += ["--api-key", "sk-1", "--json", str(json_file), "--plot", str(plot)]
        result = runner.invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    said = plain(result.output)
    assert "concurrency 1: 6 requests, 0 failed" in said
    assert "concurrency 3: 6 requests, 0 failed" in said
    assert "text tokens 2.0 2.0 2.0 2.0 2.0" in said
    report = Report.model_validate_json(json_file.read_text())
    assert report.model == MODEL
    assert [len(level.samples) for level in report.levels] == [6, 6]
    assert len(fake.bodies) == 14
    assert fake.bodies[0]["stage_params"]["talker"]["max_tokens"] == 15
    assert set(fake.keys) == {"bearer sk-1"}
    assert "sk-1" not in json_file.read_text()
    titles = [element.text for element in ElementTree.parse(plot).iter() if element.text]
    assert {"TTFT ms", "TTFP ms", "RTF", "longest stall ms", "requests/s"} <= set(titles)


def test_the_file_has_samples_and_figures_for_whoever_reads_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with FakeOpenAI(SPEECH).running() as url:
        arguments = ["bench", "serve", url, "--requests", "2", "--modalities", "text,audio"]
        runner.invoke(cli.app, [*arguments, "--json", str(path)])
    (level,) = json.loads(path.read_text())["levels"]
    assert level["samples"][0]["audio_s"] == pytest.approx(1.2)
    assert set(level["metrics"]["ttfp_s"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert level["rates"]["requests"] > 0


def test_failures_are_named_and_are_the_exit_code() -> None:
    with FakeOpenAI(Script(text_s=(0.0,), failing=frozenset({1, 4}))).running() as url:
        result = runner.invoke(
            cli.app, ["bench", "serve", url, "--requests", "5", "--warmups", "0"]
        )
    assert result.exit_code == 1
    assert "5 requests, 2 failed" in plain(result.output)
    assert "2 failed: HTTP 503: all slots are taken" in plain(result.output)


def test_a_server_that_is_not_there_fails_each_request() -> None:
    with refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        arguments = ["bench", "serve", url, "--requests", "2", "--warmups", "0"]
        result = runner.invoke(cli.app, [*arguments, "--model", "m"])
        assert result.exit_code == 1
        assert "2 requests, 2 failed" in plain(result.output)
        assert "2 failed: ConnectError: [Errno 111]" in plain(result.output)
        result = runner.invoke(cli.app, arguments)
        assert result.exit_code == 1
        assert f"error: {url}/v1/models: ConnectError" in plain(result.output)


def test_a_body_from_a_file_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_text('{"messages": [{"role": "user", "content": "Say {prompt}"}], "top_k": 5}')
    fake = FakeOpenAI(Script(text_s=(0.0,)))
    with fake.running() as url:
        arguments = ["bench", "serve", url, "--requests", "1", "--body", str(path)]
        result = runner.invoke(cli.app, [*arguments, "--extra-body", '{"top_k": 6}'])
    assert result.exit_code == 0, result.output
    assert fake.bodies[0]["top_k"] == 6
    assert re.fullmatch(r"Say( [a-z]+){72}", fake.bodies[0]["messages"][0]["content"])


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--plot", "a.png", "--plot writes .svg files"),
        ("--concurrency", "0", "out of range"),
        ("--modalities", "smell", "is unknown; allowed"),
        ("--extra-body", "3", "must be a JSON object"),
        ("--body", "none.json", "does not exist"),
    ],
)
def test_a_mistake_is_said_before_anything_is_sent(option: str, value: str, complaint: str) -> None:
    result = runner.invoke(cli.app, ["bench", "serve", "http://a.invalid", option, value])
    assert result.exit_code == 2
    assert complaint in plain(result.output)

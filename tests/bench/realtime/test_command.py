"""`omnistage bench realtime` against the gateway, over fake stages; speech is told by loudness."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes import stages as fake_stages
from support.gateway.serving import OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.media.sounds import tone, wav_of
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.endpoints.realtime import realtime

QUICK = ["--speech-seconds", "0.3", "--silence-ms", "200", "--seed", "1"]
runner = CliRunner(env={"COLUMNS": "160"})


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    monkeypatch.setattr(realtime, "silero_file", lambda: None)
    with running_gateway(tmp_path, OMNI) as running:
        yield running


def bench(url: str, file: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """The first level of a run."""
    arguments = ["bench", "realtime", url, *QUICK, "--json", str(file), *options]
    result = runner.invoke(cli.app, arguments)
    assert result.exit_code == code, result.output
    level: dict[str, Any] = json.loads(file.read_text())["levels"][0]
    return level


def test_each_turn_of_each_session_is_answered_and_timed(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    level = bench(gateway.url, tmp_path / "a.json", "--sessions", "2", "--turns", "2")
    turns = level["turns"]
    assert [(turn["session"], turn["number"]) for turn in turns] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for turn in turns:
        assert turn["error"] is None
        assert turn["decided_s"] > turn["spoken_s"]
        assert turn["decided_s"] <= turn["committed_s"] <= turn["created_s"] <= turn["first_text_s"]
        assert turn["created_s"] <= turn["first_sound_s"] <= turn["done_s"]
        assert turn["audio_s"] == pytest.approx(5 * fake_stages.SAMPLES_PER_FRAME / 24_000)
    assert level["spoken_to_sound_s"]["p50"] > level["decided_to_sound_s"]["p50"]
    assert level["audio_rate"] == pytest.approx(0.4 / level["duration_s"])


def test_an_interruption_is_timed_and_nothing_comes_behind_it(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = fake_stages.SAMPLES_PER_FRAME

    def first_is_endless(body: Any) -> str:
        is_first = sum(one["role"] == "user" for one in body.fields["messages"]) == 1
        # A frame of 10 s is not played to its end before the user speaks.
        samples = 10 * 24_000 if is_first else usual
        monkeypatch.setattr(fake_stages, "SAMPLES_PER_FRAME", samples)
        return "endless" if is_first else ""

    monkeypatch.setattr(fake_stages, "text_of", first_is_endless)
    level = bench(gateway.url, tmp_path / "a.json", "--turns", "2", "--interruptions", "1")
    first, second = level["turns"]
    assert 0 <= first["barge_in_s"] < level["duration_s"]
    assert first["num_late_deltas"] == 0
    assert (first["error"], second["error"], second["barge_in_s"]) == (None, None, None)
    seen = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)["messages"]
    # Truncated within its one endless word, the answer has none.
    assert [one["role"] for one in seen] == ["user", "user"]


def test_recordings_are_spoken(gateway: RunningGateway, tmp_path: Path) -> None:
    file = tmp_path / "hello.wav"
    file.write_bytes(wav_of(tone(0.4)))
    level = bench(gateway.url, tmp_path / "a.json", "--turns", "1", "--audio", str(file))
    assert level["turns"][0]["speech_s"] == pytest.approx(0.4)


def test_an_answer_that_fails_is_an_error_of_its_turn(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "refuse")
    level = bench(gateway.url, tmp_path / "a.json", "--turns", "1", code=1)
    assert "too long" in level["turns"][0]["error"]


def test_a_server_without_speech_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, "silero_file", lambda: None)
    with running_gateway(tmp_path, TEXT_ONLY) as gateway:
        level = bench(gateway.url, tmp_path / "a.json", "--turns", "1", code=1)
    assert level["turns"][0]["error"] == "the answer has no sound"


def test_a_refused_session_is_an_error(gateway: RunningGateway, tmp_path: Path) -> None:
    session = '{"output_modalities": ["smell"]}'
    level = bench(gateway.url, tmp_path / "a.json", "--extra-session", session, code=1)
    assert "output_modalities" in level["turns"][0]["error"]


def test_a_server_that_is_not_there_ends_the_command() -> None:
    result = runner.invoke(cli.app, ["bench", "realtime", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--false-ends", "0.1", "--pause-ms", "500"], "ends a turn"),
        (["--sessions", "0"], "out of range"),
        (["--extra-session", "[]"], "must be a JSON object"),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], problem: str) -> None:
    result = runner.invoke(cli.app, ["bench", "realtime", *options])
    assert result.exit_code == 2
    assert problem in result.output

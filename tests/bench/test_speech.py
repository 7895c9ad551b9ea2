"""`omnistage bench speech`: raw samples as they arrive, and as a person calls it."""

import json
import re
from pathlib import Path

import pytest
from support.bench.fake_openai import FakeOpenAI, Script
from support.virtual_time import run_virtual
from typer.testing import CliRunner

from omnistage.bench.load import Load, OpenLoop, arrivals
from omnistage.bench.report import Level
from omnistage.bench.run import Plan, run_plan
from omnistage.bench.speech import SpeechClient, Texts
from omnistage.server import cli

STEADY = Script(packets=((0.25, 0.5), (0.5, 1.0)))
DRY = Script(packets=((0.25, 0.5), (1.0, 1.0)))
# By a real clock: a minute of sound lasts till the next comes, a hundredth of a second does not.
NEVER_DRY = Script(packets=((0.0, 60.0), (0.25, 1.0)))
SURELY_DRY = Script(packets=((0.0, 0.01), (3.0, 1.0)))
runner = CliRunner(env={"COLUMNS": "160"})


def level_of(fake: FakeOpenAI, load: Load, connect_s: float = 0.0) -> Level:
    texts = Texts(seed=1, num_words=5)
    plan = Plan("http://a", texts, (load,), 60.0, client=SpeechClient, from_plan=True)
    (level,) = run_virtual(
        run_plan(plan, lambda level: None, fake.network(connect_s=connect_s))
    ).levels
    return level


def test_first_sound_counts_from_the_planned_arrival() -> None:
    """Making a connection is the server's affair too, to who wants to hear it."""
    level = level_of(FakeOpenAI(STEADY), OpenLoop(100.0, 6, 0, seed=2), connect_s=0.125)
    assert [one.start_s for one in level.samples] == pytest.approx(arrivals(100.0, 6, seed=2))
    first, *others = [one.ttfp_s for one in level.samples]
    assert first == pytest.approx(0.25)  # there is a connection, by which the models were asked for
    assert others == pytest.approx([0.375] * 5)
    assert [one.audio_s for one in level.samples] == pytest.approx([1.5] * 6)
    assert (level.num_failed, level.num_underruns) == (0, 0)


def test_an_answer_that_runs_dry_is_an_underrun() -> None:
    level = level_of(FakeOpenAI(DRY), OpenLoop(4.0, 3, 0, seed=2))
    assert level.num_underruns == 3
    assert level.samples[0].playback.stall_s == pytest.approx(0.25)


def test_an_answer_without_sound_has_failed() -> None:
    level = level_of(FakeOpenAI(Script(packets=())), OpenLoop(4.0, 2, 0, seed=2))
    assert level.errors == ["the answer has no sound"] * 2


def test_texts_are_one_sentence_each_and_the_same_for_a_seed() -> None:
    texts = Texts(seed=3, num_words=4, voice="ethan", frames=7, overrides=({"speed": 2},))
    body = texts.body(5, "m")
    assert re.fullmatch(r"[A-Z][a-z]*( [a-z]+){3}\.", body["input"])
    assert body == texts.body(5, "m") != texts.body(6, "m")
    assert body["stage_params"] == {"talker": {"max_tokens": 7, "ignore_eos": True}}
    assert (body["voice"], body["speed"], body["response_format"]) == ("ethan", 2, "pcm")


@pytest.mark.parametrize(("script", "code", "underruns"), [(NEVER_DRY, 0, 0), (SURELY_DRY, 1, 2)])
def test_the_command_fails_if_a_player_ran_dry(
    tmp_path: Path, script: Script, code: int, underruns: int
) -> None:
    json_file = tmp_path / "a.json"
    with FakeOpenAI(script).running() as url:
        arguments = ["bench", "speech", url, "--rate", "20", "--requests", "2", "--warmups", "0"]
        result = runner.invoke(cli.app, [*arguments, "--json", str(json_file)])
    assert result.exit_code == code, result.output
    assert "first sound after the planned arrival" in result.output
    (level,) = json.loads(json_file.read_text())["levels"]
    assert level["num_underruns"] == underruns


def test_options_that_exclude_each_other_are_refused() -> None:
    result = runner.invoke(cli.app, ["bench", "speech", "--rate", "1", "--concurrency", "2"])
    assert result.exit_code == 2
    assert "exclude each other" in result.output

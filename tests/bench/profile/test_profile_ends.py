"""Profiles that cannot begin, fail in the middle, or cannot be read."""

import gzip
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.bench.fake_openai import Reply
from support.bench.profiled import ONE, bench, said
from support.bench.profiles import ProfiledServer, content
from typer.testing import CliRunner

from omnistage.bench.profile import session
from omnistage.server import cli


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REHEARSAL_S", 0.0)
    monkeypatch.setattr(session, "TRACE_PATIENCE_S", 0.2)


@dataclass
class LosingServer(ProfiledServer):
    """Starts its talker again in the middle of the level, and then says `lost`."""

    lost: Mapping[str, Any] = field(default_factory=dict)

    def reply(self, path: str, content: bytes, key: str | None = None) -> Reply:
        if path == "/admin/profile/stop" and self.bodies:
            self.stopped = {**self.stopped, "talker@0": self.lost}
        return super().reply(path, content, key)


@pytest.mark.parametrize(
    ("status", "told"), [(409, ["start"]), (500, ["start", "stop"])], ids=["others", "own"]
)
def test_of_profiles_that_cannot_begin_only_the_benchs_own_is_ended(
    status: int, told: list[str], stopped: dict[str, Any], tmp_path: Path
) -> None:
    refusals = {"start": [(0, ""), (status, "not now")]}
    server = ProfiledServer(ONE, stopped=stopped, refusals=refusals)
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 1
    assert "not now" in said(result)
    assert [one.split()[0] for one in server.told] == ["start", "stop", *told]


def test_a_server_that_has_lost_a_stage_still_says_which_take_no_profile(
    stopped: dict[str, Any], tmp_path: Path
) -> None:
    server = ProfiledServer(ONE, stopped=stopped, others=("singer",), health=503)
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 0, result.output
    assert "Stage singer takes no profile" in said(result)


@pytest.mark.parametrize("answer", [{"files": []}, {"folder": ""}])
def test_a_stage_without_a_trace_leaves_the_names_of_the_others(
    answer: dict[str, Any], stopped: dict[str, Any], tmp_path: Path
) -> None:
    server = LosingServer(ONE, stopped=stopped, lost=answer)
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 1
    text = said(result)
    assert "stage talker@0 has written no trace; the server's log says why" in text
    assert f"The stages' own traces: {tmp_path / 'v.json.gz'}" in text
    assert "9 requests, 0 failed" in text


def test_a_profile_that_fails_in_the_middle_leaves_the_levels_figures(
    stopped: dict[str, Any], tmp_path: Path
) -> None:
    server = ProfiledServer(ONE, stopped=stopped)
    shutil.copy(tmp_path / "v.json.gz", tmp_path / "w.json.gz")
    server.stopped = {**stopped, "code2wav": {"file": str(tmp_path / "w.json.gz")}}
    (tmp_path / "w.json.gz").write_bytes(gzip.compress(content([])))
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 1
    assert "9 requests, 0 failed" in said(result)
    assert "--profile: the trace of stage code2wav is empty. The stages' own traces:" in said(
        result
    )


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "no stage of this server takes a profile; start the server with --profile-folder DIR"),
        ({"talker": {"folder": "/x", "files": []}}, "stage talker has written no trace"),
        ({"talker": {"file": "/none/a.json.gz"}}, "/none/a.json.gz, which is not on this machine"),
    ],
)
def test_traces_that_cannot_be_read_are_told_before_anything_is_sent(
    answers: Mapping[str, Any], says: str, tmp_path: Path
) -> None:
    server = ProfiledServer(ONE, stopped=answers)
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 1
    assert says in said(result)
    assert server.bodies == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--profile", "a.json"], "--profile writes .json.gz files, not 'a.json'"),
        (["--profile", "none/a.json.gz"], "--profile: there is no folder 'none'"),
        (["--profile", "a.json.gz", "--concurrency", "1,2"], "--profile is for one level, and 2"),
        (["--profile", "a.json.gz", "--rate", "1,2,4"], "--profile is for one level, and 3"),
        (["--profile", "a.json.gz"], "--profile needs the server's admin key: give"),
        (["--profile-seconds", "2"], "--profile-seconds has no effect without --profile"),
        (["--admin-key-file", "a"], "--admin-key-file has no effect without --profile"),
        (["--profile", "a.json.gz", "--admin-key-file", "none"], "--admin-key-file none: No such"),
    ],
)
def test_a_mistake_is_said_before_anything_is_sent(options: list[str], says: str) -> None:
    runner = CliRunner(env={"COLUMNS": "160", "OMNISTAGE_ADMIN_KEY": None})
    result = runner.invoke(cli.app, ["bench", "serve", "http://a.invalid", *options])
    assert result.exit_code == 2
    assert says in said(result)

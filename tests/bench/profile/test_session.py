"""Whole runs of `bench serve --profile` against a server that has traces ready."""

import gzip
import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.fake_openai import Script
from support.profiles import ProfiledServer, content, read, run, span, write
from typer.testing import CliRunner, Result

from omnistage.bench.profile import session
from omnistage.bench.report import Report
from omnistage.server import cli

KEY = "sk-admin"
ONE = Script(text_s=(0.0,))
SHORT = ["--requests", "9", "--warmups", "2", "--profile-seconds", "0.01"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REHEARSAL_S", 0.0)
    monkeypatch.setattr(session, "TRACE_PATIENCE_S", 0.2)


@pytest.fixture
def stopped(tmp_path: Path) -> dict[str, Any]:
    """What stages say: of one trace, and of two ranks whose clocks have another base."""
    own = [span(0.0, 100.0), run("a", 10.0, 20.0)]
    ranks = [span(-5.0, 95.0), run("b", 15.0, 20.0)]
    base_ns = time.time_ns()
    shifted = base_ns + 5_000
    files = [write(tmp_path / f"t{rank}.json.gz", ranks, shifted) for rank in range(2)]
    vocoder = {"file": str(write(tmp_path / "v.json.gz", own, base_ns))}
    folder = {"folder": str(tmp_path), "files": list(map(str, files))}
    return {"talker@0": folder, "code2wav": vocoder}


def bench(server: ProfiledServer, file: Path, *more: str, key: str | None = KEY) -> Result:
    runner = CliRunner(env={"COLUMNS": "160", "OMNISTAGE_ADMIN_KEY": key})
    with server.running() as url:
        arguments = ["bench", "serve", url, *SHORT, "--profile", str(file), *more]
        return runner.invoke(cli.app, arguments)


def said(result: Result) -> str:
    """All that was printed, as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[─-╿]", " ", result.output).split())


def test_stages_are_profiled_in_the_middle_of_a_level(
    stopped: dict[str, Any], tmp_path: Path
) -> None:
    server = ProfiledServer(ONE, stopped=stopped, others=("singer",))
    report = tmp_path / "report.json"
    result = bench(server, tmp_path / "all.json.gz", "--json", str(report))
    assert result.exit_code == 0, result.output
    # A rehearsal before anything is sent; then, behind two warm-ups, a third of nine requests.
    assert server.told[:2] == ["start after 0", "stop after 0"]
    (start, num), stop = re.findall(r"(\w+) after (\d+)", " ".join(server.told[2:]))
    assert (start, stop[0]) == ("start", "stop")
    assert 2 + 3 <= int(num) <= 2 + 9
    assert server.admin_keys == {f"bearer {KEY}"}
    text = said(result)
    assert "profile of 0.000 s: kernels of each stage" in text
    assert "talker@0 20.0 10.0 " in text  # 20 to 40 of 100, on code2wav's clock
    assert "Stage singer takes no profile" in text
    assert "A profile slows what it looks at" in text
    (level,) = Report.model_validate_json(report.read_text()).levels
    assert level.profile is not None
    assert level.profile.note.startswith("A profile slows")
    sets = {one.stages: one.share for one in level.profile.shares}
    assert sets[("talker@0", "code2wav")] == pytest.approx(0.1)  # 20 to 30
    events = read(tmp_path / "all.json.gz")
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {"talker@0 rank 0", "talker@0 rank 1", "code2wav"}
    assert KEY not in report.read_text()


def test_a_level_that_ends_before_its_profile_says_so(
    stopped: dict[str, Any], tmp_path: Path
) -> None:
    server = ProfiledServer(ONE, stopped=stopped)
    result = bench(server, tmp_path / "all.json.gz", "--profile-seconds", "0.5")
    assert result.exit_code == 0, result.output
    assert "All requests were answered before the profile ended" in said(result)


@pytest.mark.parametrize(
    ("status", "message", "says"),
    [
        (401, "Incorrect API key.", "--profile needs the server's admin key"),
        (403, "Admin endpoints need a server with an admin key.", "HTTP 403"),
        (404, "Not Found", "--profile is for servers of omnistage"),
        (
            400,
            "Stage thinker: it has no profiler_config.",
            "start the server with --profile-folder",
        ),
        (500, "Stage talker: start_profile failed; its log says why.", "its log says why"),
    ],
)
def test_a_server_that_refuses_is_told_before_anything_is_sent(
    status: int, message: str, says: str, stopped: dict[str, Any], tmp_path: Path
) -> None:
    refusals = {"start": [(status, message)]}
    server = ProfiledServer(ONE, stopped=stopped, refusals=refusals)
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 1
    assert says in said(result)
    assert server.bodies == []


def test_a_profile_that_was_never_ended_is_ended_first(
    stopped: dict[str, Any], tmp_path: Path
) -> None:
    refusals = {"start": [(409, "a profile runs already; stop it first")]}
    server = ProfiledServer(ONE, stopped=stopped, refusals=refusals)
    assert bench(server, tmp_path / "all.json.gz").exit_code == 0
    assert [one.split()[0] for one in server.told] == ["start", "stop"] * 3


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


def test_the_key_may_be_in_a_file(stopped: dict[str, Any], tmp_path: Path) -> None:
    server = ProfiledServer(ONE, stopped=stopped)
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nsk-file # the first\nsk-second\n")
    given = ["--admin-key-file", str(keys)]
    assert bench(server, tmp_path / "all.json.gz", *given, key=None).exit_code == 0
    assert server.admin_keys == {"bearer sk-file"}
    keys.write_text("# none\n")
    result = bench(server, tmp_path / "all.json.gz", *given, key=None)
    assert result.exit_code == 2
    assert "has no key in it" in said(result)


def test_the_merged_file_is_one_json_object(stopped: dict[str, Any], tmp_path: Path) -> None:
    bench(ProfiledServer(ONE, stopped=stopped), tmp_path / "all.json.gz")
    with gzip.open(tmp_path / "all.json.gz") as file:
        merged = json.load(file)
    assert merged["displayTimeUnit"] == "ms"
    (first, second) = [one["ts"] for one in merged["traceEvents"] if one["name"] in ("a", "b")][1:]
    # Both ranks' begin at 15 us of a base that is 5 us later; code2wav's at 10 us.
    assert first - second == pytest.approx(10.0, abs=1e-3)

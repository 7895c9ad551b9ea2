"""Whole runs of `bench serve --profile` against a server that has traces ready."""

import asyncio
import contextlib
import gzip
import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.fake_openai import PATHS, Reply, Script
from support.profiles import ProfiledServer, content, read, run, span, write
from typer.testing import CliRunner, Result

from omnistage.bench.profile import session
from omnistage.bench.report import Report
from omnistage.server import cli

KEY = "sk-admin"
ONE = Script(text_s=(0.0,))
NUM_SENT = 2 + 9
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


class PatientServer(ProfiledServer):
    """Answers the last request once a profile of the level has begun, or not at all in time."""

    has_begun_in_time = False

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self._has_begun = asyncio.Event()

    def reply(self, path: str, content: bytes, key: str | None = None) -> Reply:
        if path == "/admin/profile/start" and self.bodies:
            self._has_begun.set()
        return super().reply(path, content, key)

    async def replied(self, path: str, content: bytes, key: str | None) -> Reply:
        reply = await super().replied(path, content, key)
        if path in PATHS and len(self.bodies) == NUM_SENT:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_begun.wait(), 600)
                self.has_begun_in_time = True
        return reply


@dataclass
class LosingServer(ProfiledServer):
    """Its talker starts again in the middle of the level, and then says `lost`."""

    lost: Mapping[str, Any] = field(default_factory=dict)

    def reply(self, path: str, content: bytes, key: str | None = None) -> Reply:
        if path == "/admin/profile/stop" and self.bodies:
            self.stopped = {**self.stopped, "talker@0": self.lost}
        return super().reply(path, content, key)


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
    server = PatientServer(ONE, stopped=stopped, others=("singer",))
    report = tmp_path / "report.json"
    result = bench(server, tmp_path / "all.json.gz", "--json", str(report))
    assert result.exit_code == 0, result.output
    # A rehearsal before anything is sent; then, behind two warm-ups, a third of nine requests.
    assert server.told[:2] == ["start after 0", "stop after 0"]
    (start, num), stop = re.findall(r"(\w+) after (\d+)", " ".join(server.told[2:]))
    assert (start, stop[0]) == ("start", "stop")
    assert 2 + 3 <= int(num) <= 2 + 9
    assert server.has_begun_in_time
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
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 0
    assert [one.split()[0] for one in server.told] == ["start", "stop"] * 3
    assert "warning: --profile: a profile of this server's stages ran already" in said(result)


@pytest.mark.parametrize(
    ("refusals", "told"),
    [
        ([(500, "talker failed")], ["start", "stop"]),
        ([(503, "talker loads")], ["start", "stop"]),
        ([(409, "runs already"), (504, "talker is late")], ["start", "stop", "start", "stop"]),
    ],
)
def test_stages_that_began_before_another_refused_are_told_to_stop(
    refusals: list[tuple[int, str]],
    told: list[str],
    stopped: dict[str, Any],
    tmp_path: Path,
) -> None:
    server = ProfiledServer(ONE, stopped=stopped, refusals={"start": [*refusals]})
    result = bench(server, tmp_path / "all.json.gz")
    assert result.exit_code == 1
    assert refusals[-1][1] in said(result)
    assert [one.split()[0] for one in server.told] == told


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


def test_the_key_may_be_in_a_file(stopped: dict[str, Any], tmp_path: Path) -> None:
    server = ProfiledServer(ONE, stopped=stopped)
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\n  # and\n  sk-file#1  \nsk-second\n")
    given = ["--admin-key-file", str(keys)]
    assert bench(server, tmp_path / "all.json.gz", *given, key=None).exit_code == 0
    assert server.admin_keys == {"bearer sk-file#1"}
    for wrong, says in (
        (b"# none\n", f"{keys} has no key in it"),
        (b"sk-\xff", f"{keys} is no text"),
    ):
        keys.write_bytes(wrong)
        result = bench(server, tmp_path / "all.json.gz", *given, key=None)
        assert result.exit_code == 2
        assert says in said(result)


def test_the_merged_file_is_one_json_object(stopped: dict[str, Any], tmp_path: Path) -> None:
    bench(ProfiledServer(ONE, stopped=stopped), tmp_path / "all.json.gz")
    with gzip.open(tmp_path / "all.json.gz") as file:
        merged = json.load(file)
    assert merged["displayTimeUnit"] == "ms"
    (first, second) = [one["ts"] for one in merged["traceEvents"] if one["name"] in ("a", "b")][1:]
    # Both ranks' begin at 15 us of a base that is 5 us later; code2wav's at 10 us.
    assert first - second == pytest.approx(10.0, abs=1e-3)

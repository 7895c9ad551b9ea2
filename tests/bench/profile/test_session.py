"""Whole runs of `bench serve --profile` against a server that has traces ready."""

import asyncio
import contextlib
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.bench.fake_openai import PATHS, Reply
from support.bench.profiled import KEY, ONE, bench, said
from support.bench.profiles import ProfiledServer, read

from omnistage.bench.profile import session
from omnistage.bench.report import Report

NUM_SENT = 2 + 9


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REHEARSAL_S", 0.0)
    monkeypatch.setattr(session, "TRACE_PATIENCE_S", 0.2)


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

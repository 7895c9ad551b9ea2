"""`bench images` against a server that makes a picture as it is told."""

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from support.ports import refusing_port
from support.virtual_time import VirtualTimeLoop, run_virtual
from typer.testing import CliRunner

from omnistage.bench.bare import arguments_of, load_bare
from omnistage.bench.commands.images_command import show
from omnistage.bench.images import Pairs, PictureLevel, PicturePlan, PictureReport, measure
from omnistage.bench.load import ClosedLoop, OpenLoop, arrivals
from omnistage.server import cli
from omnistage.stages.diffusion.checkpoint import write_tiny


class FakeServer(httpx.AsyncBaseTransport):
    """Makes a request's images in `lasts_s`, one request after another, or all in a few turns of
    the loop; fails every `failing`th; counts how many it has at a time."""

    def __init__(self, failing: int = 0, lasts_s: float | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.now, self.most = 0, 0
        self._failing = failing
        self._lasts_s = lasts_s
        self._engine = asyncio.Lock()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/images/generations"
        self.bodies.append(json.loads(request.content))
        self.keys.add(request.headers.get("authorization"))
        number = len(self.bodies)
        self.now += 1
        self.most = max(self.most, self.now)
        if self._lasts_s is None:
            for _ in range(3):
                await asyncio.sleep(0)
        else:
            async with self._engine:
                await asyncio.sleep(self._lasts_s)
        self.now -= 1
        if self._failing and number % self._failing == 0:
            return httpx.Response(503, text="too much")
        return httpx.Response(200, json={"data": [{"b64_json": ""}] * self.bodies[-1].get("n", 1)})


def plan(server: FakeServer, **more: Any) -> PicturePlan:
    body = {"size": "64x32", "n": 2}
    loads = (ClosedLoop(1, 4, 4), ClosedLoop(3, 12, 12))
    return PicturePlan("http://a/v1/", body, loads, rounds=2, transport=server, **more)


def level_of(server: FakeServer, load: OpenLoop, rounds: int = 1) -> PictureLevel:
    """What is measured in virtual time."""
    plan = PicturePlan("http://a", {}, (load,), rounds=rounds, transport=server)
    (level,) = run_virtual(measure(plan, None)).levels
    return level


def told(report: PictureReport, width: int = 120) -> str:
    """What the command prints."""
    console = Console(record=True, width=width, file=io.StringIO())
    show(console, report)
    return console.export_text()


async def test_levels_take_turns_and_count_pictures() -> None:
    server = FakeServer()
    report = await measure(plan(server, api_key="sk-1"), None)
    assert [level.concurrency for level in report.levels] == [1, 3]
    assert [level.most_in_flight for level in report.levels] == [1, 3]
    assert [len(level.samples) for level in report.levels] == [8, 24]
    assert server.most == 3
    assert server.keys == {"Bearer sk-1"}
    assert len({body["seed"] for body in server.bodies}) == len(server.bodies) == 48
    for level in report.levels:
        for rate, duration_s in zip(level.images_per_s, level.durations_s, strict=True):
            assert rate * duration_s == pytest.approx(2 * len(level.samples) / 2)
        assert level.latency_s is not None
        assert 0 < level.latency_s.p50 <= level.latency_s.p99
    assert report.pairs is None


async def test_failures_are_told_and_count_for_nothing() -> None:
    report = await measure(plan(FakeServer(failing=4)), None)
    errors = [error for level in report.levels for error in level.errors]
    assert set(errors) == {"HTTP 503: too much"}
    assert [level.num_failed for level in report.levels] == [2, 6]
    assert len(errors) == 8 + 4  # the warm-up's too
    assert "HTTP 503: too much" in told(report)


def test_latency_of_a_rate_counts_from_the_planned_arrival() -> None:
    """Whatever is in flight: here requests wait for each other in the server."""
    server = FakeServer(lasts_s=1.0)
    level = level_of(server, OpenLoop(2.0, 6, 0, seed=2))
    times = arrivals(2.0, 6, seed=2)
    assert [one.start_s for one in level.samples] == pytest.approx(times)
    ends, free_s = [], 0.0
    for at_s in times:
        free_s = max(free_s, at_s) + 1.0
        ends.append(free_s)
    assert [one.end_s for one in level.samples] == pytest.approx(ends)
    assert level.images_per_s == pytest.approx((6 / ends[-1],))
    assert level.most_in_flight == server.most > 1
    assert (level.rate, level.concurrency, level.name) == (2.0, None, "2 req/s")


def test_a_request_that_is_sent_late_is_that_much_slower() -> None:
    """A client whose loop was busy when the request was to come hides none of that."""

    class Busy(FakeServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            if not self.bodies:
                loop.jump(5.0)  # nothing else runs meanwhile
            return await super().handle_async_request(request)

    level = level_of(Busy(lasts_s=0.0), OpenLoop(2.0, 3, 0, seed=2))
    times = arrivals(2.0, 3, seed=2)
    assert times[-1] < 5.0
    assert [one.start_s for one in level.samples] == pytest.approx(times)
    assert [one.end_s for one in level.samples] == pytest.approx([5.0] * 3)


def test_each_round_has_arrivals_of_its_own_that_a_seed_repeats() -> None:
    load = OpenLoop(2.0, 4, 2, seed=7)
    server = FakeServer(lasts_s=0.1)
    level = level_of(server, load, rounds=2)
    rounds = [[one.start_s for one in level.samples if one.round == number] for number in (0, 1)]
    assert rounds == [pytest.approx(arrivals(2.0, 4, seed)) for seed in (7, 8)]
    assert len(server.bodies) == 2 + 2 * 4  # the warm-up once
    assert level == level_of(FakeServer(lasts_s=0.1), load, rounds=2)


@pytest.mark.parametrize(("lasts_s", "grew"), [(0.2, False), (2.0, True)])
def test_a_rate_that_the_server_does_not_keep_up_with_is_told(lasts_s: float, grew: bool) -> None:
    plan = PicturePlan(
        "http://a", {}, (OpenLoop(1.0, 24, 0, 3),), transport=FakeServer(lasts_s=lasts_s)
    )
    report = run_virtual(measure(plan, None))
    (level,) = report.levels
    assert level.queue_grew == grew
    said = "the server may not keep up with 1 req/s: its queue grew"
    assert (said in told(report)) == grew
    assert re.search(rf"\n +1 +72 +0 +{level.most_in_flight} ", told(report))


def test_the_table_fits_80_columns() -> None:
    loads = (OpenLoop(0.025, 4, 0, 3), OpenLoop(0.5, 40, 0, 3))
    plan = PicturePlan("http://a", {}, loads, transport=FakeServer(lasts_s=8.0))
    shown = told(run_virtual(measure(plan, None)), width=80)
    assert "…" not in shown
    rows = [line.split() for line in shown.splitlines()]
    heads = "req/s sent failed in flight images/s range p50 ms p90 ms p99 ms"
    assert heads.split() in rows
    (slow,) = [row for row in rows if row[:1] == ["0.025"]]
    assert slow[1:3] == ["12", "0"]
    assert slow[-3] == "8000"


def test_a_full_closed_loop_is_no_queue_that_grows() -> None:
    plan = PicturePlan("http://a", {}, (ClosedLoop(8, 32, 0),), transport=FakeServer(lasts_s=1.0))
    (level,) = run_virtual(measure(plan, None)).levels
    assert level.most_in_flight == 8
    assert not level.queue_grew


async def test_pairs_take_turns_with_the_bare_pipeline() -> None:
    server, calls = FakeServer(), []

    def bare(number: int) -> float:
        calls.append((number, len(server.bodies)))
        return 2.0

    report = await measure(plan(server, num_pairs=4), bare)
    assert report.pairs is not None
    assert len(report.pairs.served_s) == len(report.pairs.bare_s) == 4
    # the server's requests that were there before each call: first the one, then the other is first
    assert [before for _, before in calls] == [1, 1, 3, 3, 5]


def test_the_ratio_is_of_each_pair() -> None:
    pairs = Pairs(served_s=(1.0, 2.0, 6.0), bare_s=(1.0, 1.0, 2.0))
    assert pairs.ratio_quartiles == (1.5, 2.0, 2.5)


def test_fields_become_the_pipeline_s_arguments(tmp_path: Path) -> None:
    body = {"size": "48x32", "n": 2, "seed": 3, "num_inference_steps": 1}
    assert arguments_of(body) == {
        "width": 48,
        "height": 32,
        "num_images_per_prompt": 2,
        "num_inference_steps": 1,
    }
    write_tiny("flux", tmp_path)
    assert load_bare(str(tmp_path), body)(1) > 0


def test_the_command_says_what_is_wrong() -> None:
    runner = CliRunner(env={"COLUMNS": "120"})
    for wrong in (
        ["--concurrency", "0"],
        ["--rate", "0"],
        ["--rate", "1", "--concurrency", "2"],
        ["--requests", "3"],  # four streams are the usual second level
        ["--warmups", "-1"],
        ["--extra-body", "[]"],
        ["--json", "a.txt"],
    ):
        result = runner.invoke(cli.app, ["bench", "images", *wrong])
        assert result.exit_code == 2, result.output
        assert wrong[0] in result.output


def test_the_command_writes_every_request_of_a_rate(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    arguments = ["--rate", "100,200", "--requests", "2", "--warmups", "0", "--rounds", "2"]
    arguments += ["--seed", "5", "--json", str(file)]
    runner = CliRunner(env={"COLUMNS": "120"})
    with refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        result = runner.invoke(cli.app, ["bench", "images", url, *arguments])
    assert result.exit_code == 1
    assert "ConnectError" in result.output
    report = json.loads(file.read_text())
    assert report["seed"] == 5
    for level, rate in zip(report["levels"], (100.0, 200.0), strict=True):
        assert (level["rate"], level["concurrency"], level["num_failed"]) == (rate, None, 4)
        starts = [(one["round"], one["start_s"]) for one in level["samples"]]
        due = [(round_, at) for round_ in (0, 1) for at in arrivals(rate, 2, 5 + round_)]
        assert sorted(starts) == [(round_, pytest.approx(at, abs=0.05)) for round_, at in due]

"""`bench images` against a server that makes a picture as it is told."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from omnistage.bench.bare import arguments_of, load_bare
from omnistage.bench.images import Pairs, PicturePlan, measure
from omnistage.bench.images_command import show
from omnistage.server import cli
from omnistage.stages.diffusion.checkpoint import write_tiny


class FakeServer(httpx.AsyncBaseTransport):
    """Answers at once, but for every `failing`th request; counts how many it has at a time."""

    def __init__(self, failing: int = 0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.now, self.most = 0, 0
        self._failing = failing

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/images/generations"
        self.bodies.append(json.loads(request.content))
        self.keys.add(request.headers.get("authorization"))
        number = len(self.bodies)
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(3):
            await asyncio.sleep(0)
        self.now -= 1
        if self._failing and number % self._failing == 0:
            return httpx.Response(503, text="too much")
        return httpx.Response(200, json={"data": [{"b64_json": ""}] * self.bodies[-1].get("n", 1)})


def plan(server: FakeServer, **more: Any) -> PicturePlan:
    body = {"size": "64x32", "n": 2}
    return PicturePlan("http://a/v1/", body, (1, 3), rounds=2, transport=server, **more)


async def test_levels_take_turns_and_count_pictures() -> None:
    server = FakeServer()
    report = await measure(plan(server, api_key="sk-1"), None)
    assert [level.concurrency for level in report.levels] == [1, 3]
    assert [len(level.samples) for level in report.levels] == [8, 24]
    assert server.most == 3
    assert server.keys == {"Bearer sk-1"}
    assert len({body["seed"] for body in server.bodies}) == len(server.bodies) == 48
    for level in report.levels:
        for rate, duration_s in zip(level.images_per_s, level.durations_s, strict=True):
            assert rate * duration_s == pytest.approx(2 * 4 * level.concurrency)
        assert level.latency_s is not None
        assert 0 < level.latency_s.p50 <= level.latency_s.p99
    assert report.pairs is None


async def test_failures_are_told_and_count_for_nothing() -> None:
    report = await measure(plan(FakeServer(failing=4)), None)
    errors = [error for level in report.levels for error in level.errors]
    assert set(errors) == {"HTTP 503: too much"}
    assert len(errors) == 8
    console = Console(record=True, width=120, file=io.StringIO())
    show(console, report)
    assert "HTTP 503: too much" in console.export_text()


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
    for wrong in (["--concurrency", "0"], ["--extra-body", "[]"], ["--json", "a.txt"]):
        result = runner.invoke(cli.app, ["bench", "images", *wrong])
        assert result.exit_code == 2, result.output
        assert wrong[0] in result.output
    result = runner.invoke(cli.app, ["bench", "images", "http://127.0.0.1:9", "--requests", "1"])
    assert result.exit_code == 1
    assert "ConnectError" in result.output

"""The first request that a start prints: it is one that the server answers."""

import io
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.gateway.serving import EMBEDDING, IMAGES, MIXED, OMNI, running_gateway

from omnistage.server.http.access.keys import Keys
from omnistage.server.telemetry.quiet import QuietTerminal
from omnistage.server.telemetry.start_report import FIRST_REQUESTS, StartReport
from omnistage.stage_configs.graph import StageGraph

SPEECH = {**OMNI, "outputs": {"audio": "code2wav"}}
VIDEO = {**IMAGES, "stages": {"camera": {"kind": "diffusers"}}, "outputs": {"video": "camera"}}
GRAPHS: dict[str, dict[str, Any]] = {
    "text": OMNI,
    "text and images": MIXED,
    "speech": SPEECH,
    "image": IMAGES,
    "video": VIDEO,
    "embedding": EMBEDDING,
}


def report_of(graph: dict[str, Any], **options: bool) -> tuple[StartReport, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    return StartReport(
        StageGraph.model_validate(graph), console, QuietTerminal(), **options
    ), screen


def test_there_is_a_first_request_for_each_output_that_a_graph_may_have() -> None:
    made = {output for graph in GRAPHS.values() for output in graph["outputs"]}
    assert made == set(FIRST_REQUESTS)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_first_request_is_answered(name: str, tmp_path: Path) -> None:
    with running_gateway(tmp_path, GRAPHS[name]) as gateway:
        command = report_of(GRAPHS[name])[0].curl(gateway.url)
        if name == "video":  # the stand-in has no sizes of its own
            command = command.replace(
                '{"prompt"', '{"width":64,"height":48,"num_frames":5,"prompt"'
            )
        done = subprocess.run(
            [*shlex.split(command), "--silent", "--write-out", "%{stderr}%{http_code}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.stderr.endswith("200"), (command, done.stdout)


def test_with_keys_the_first_request_has_one(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, keys=Keys(["sk-a"])) as gateway:
        command = report_of(OMNI, needs_key=True)[0].curl(gateway.url)
        done = subprocess.run(
            ["bash", "-c", f"{command} --silent --write-out '%{{stderr}}%{{http_code}}'"],
            env={"OMNISTAGE_API_KEY": "sk-a", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
    assert done.stderr.endswith("200"), (command, done.stdout)


def test_a_line_is_never_broken_so_that_it_can_be_copied() -> None:
    report, screen = report_of(OMNI)
    report.ready("http://127.0.0.1:8000")
    (curl,) = [line for line in screen.getvalue().splitlines() if "curl" in line]
    assert curl == f"  {report.curl('http://127.0.0.1:8000')}"
    assert len(curl) > 80
    assert "omnistage demo " in screen.getvalue()
    assert "--url" not in screen.getvalue()  # it is the page's own default

"""`omnistage verify`: what is refused before anything loads, and its exit codes."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner, Result

from omnistage.server import cli
from omnistage.server.cli.verifying import reference
from omnistage.server.cli.verifying.asking import Answered
from omnistage.server.cli.verifying.judge import OF_HALVES, TOLERANCES, Tolerance
from omnistage.server.cli.verifying.questions import questions_of
from omnistage.server.cli.verifying.reference import NoReference, check_packages, run_reference
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.pick import GRAPHS, resolve
from omnistage.stages.messages.to_reference import (
    AskedQuestion,
    Findings,
    Found,
    ReferenceJob,
    Task,
)

command: Any = import_module("omnistage.server.cli.verify")
SERVED = np.full((2, 2, 3), 100, np.uint8)
PIPELINE = [str(GRAPHS / "diffusers.yaml"), "--model", "none"]
ASKED = Answered("image", AskedQuestion(Task.IMAGE, {}), pixels=[SERVED])
REFUSED = Answered("image", problem="size: must be a multiple of 8")
CHATS = ["text in", "image in", "audio in", "video in"]
EQUAL, OTHER = SERVED.tobytes(), bytes(12)


def run(*typed: str) -> Result:
    return CliRunner().invoke(cli.app, ["verify", *typed])


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(graph: StageGraph, questions: object) -> None:
        raise AssertionError("the server was started")

    monkeypatch.setattr(command, "ask_server", ask)
    monkeypatch.setattr(command, "check_machine", lambda graph: None)


def resolved(graph: str) -> StageGraph:
    return resolve(str(GRAPHS / graph), "none")


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([str(GRAPHS / "qwen3_tts_tiny.yaml"), "--model", "none"], "qwen_tts is not installed; "),
        ([str(GRAPHS / "vllm_text.yaml"), "--model", "none"], "there is no reference for what"),
        ([*PIPELINE, "--reference-python", "/no/python"], "--reference-python /no/python: "),
        ([*PIPELINE, "--stage", "dit.dtipe=a"], "dtipe"),
        ([*PIPELINE, "--stage", "dit"], "--stage dit"),
        (["/no/graph.yaml"], "/no/graph.yaml"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_loads(
    typed: list[str], said: str
) -> None:
    result = run(*typed)
    assert said in result.output.replace("\n", " ")
    assert result.exit_code == 2


def test_a_package_that_the_reference_needs_is_named_with_its_pip_line() -> None:
    with pytest.raises(
        NoReference, match=r"qwen_tts is not installed; pip install qwen-tts.*--reference-python"
    ):
        check_packages(sys.executable, ["json", "qwen_tts"])
    check_packages(sys.executable, ["json"])


def test_a_machine_that_cannot_serve_the_graph_is_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omnistage.server.cli.graphs.visible_gpus", lambda: [])
    result = run(str(GRAPHS / "qwen3_omni_1gpu.yaml"), "--model", "none")
    assert "wants GPU 0" in result.output
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("answered", "found", "code"),
    [
        ([ASKED], [EQUAL], 0),
        ([ASKED], [OTHER], 1),
        ([REFUSED], [], 2),
        ([ASKED, REFUSED], [EQUAL], 2),
        ([ASKED, REFUSED], [OTHER], 1),
    ],
)
def test_the_exit_code_says_equal_different_or_not_run(
    answered: Sequence[Answered],
    found: Sequence[bytes],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_reference(python: str, job: ReferenceJob) -> Findings:
        assert len(job.asked) == len(found)
        return Findings([Found(pixels=[one]) for one in found], "float32", "cpu", {"a": "1"})

    monkeypatch.setattr(command, "check_machine", lambda graph: None)
    monkeypatch.setattr(command, "ask_server", lambda graph, questions: {"dit": answered})
    monkeypatch.setattr(command, "run_reference", run_reference)
    file = tmp_path / "report.json"
    result = run(*PIPELINE, "--json", str(file))
    assert result.exit_code == code, result.output
    report = json.loads(file.read_text())
    assert report["exit_code"] == code
    assert [one["problem"] for one in report["questions"]] == [
        one.problem or None for one in answered
    ]
    assert report["references"] == [
        {"model": "none", "dtype": "float32", "device": "cpu", "versions": {"a": "1"}}
    ] * bool(found)


def test_a_report_that_cannot_be_written_is_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = Findings([Found(pixels=[EQUAL])], "float32", "cpu", {})
    monkeypatch.setattr(command, "check_machine", lambda graph: None)
    monkeypatch.setattr(command, "ask_server", lambda graph, questions: {"dit": [ASKED]})
    monkeypatch.setattr(command, "run_reference", lambda python, job: outcome)
    result = run(*PIPELINE, "--json", "/no/folder/report.json")
    assert "/no/folder/report.json: No such file" in result.output.replace("\n", "")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        ("qwen3_omni_tiny.yaml", [*CHATS, "speech out", "speech about media"]),
        ("qwen3_omni_text_tiny.yaml", CHATS),
        ("qwen3_tts_tiny.yaml", ["speech out"]),
        ("diffusers.yaml", ["image"]),
        ("qwen3_omni_qwen_image.yaml", [*CHATS, "speech out", "speech about media"]),
        ("vllm_text.yaml", []),
    ],
)
def test_questions_are_those_that_a_graph_answers(graph: str, names: list[str]) -> None:
    found = resolved(graph)
    asked = [one for spec in found.stages.values() for one in questions_of(found, spec)]
    assert [one.name for one in asked] == names


def test_speech_is_greedy_in_every_stage_that_samples_behind_the_text() -> None:
    graph = resolved("qwen3_omni_tiny.yaml")
    asked = [one for spec in graph.stages.values() for one in questions_of(graph, spec)]
    spoken = next(one for one in asked if one.is_spoken)
    assert spoken.fields["stage_params"] == {"talker": {"temperature": 0, "max_tokens": 40}}


def test_a_reference_that_fails_says_why() -> None:
    job = ReferenceJob("omnistage.stages.reference.run:nothing", "none", "auto", [])
    with pytest.raises(NoReference, match=r"(?s)the reference ended: 1.*has no attribute"):
        run_reference(sys.executable, job)


def test_libraries_of_another_python_come_before_ours(tmp_path: Path) -> None:
    """Such as the transformers that a reference needs."""
    (tmp_path / "transformers.py").write_text("__version__ = 'its own'")
    program = f"{reference.RUN}import transformers, omnistage; print(transformers.__version__)"
    site = str(Path(cli.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, site],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.strip() == "its own", done.stderr


DOCS = (Path(__file__).parents[3] / "docs" / "verify.md").read_text()


def test_the_documentation_has_every_option_and_the_tolerances() -> None:
    (options,) = re.findall(r"## Options\n(.*?)\n\n`qwen-tts`", DOCS, re.DOTALL)
    group: Any = typer.main.get_command(cli.app)
    params = [one for one in group.commands["verify"].params if one.param_type_name == "option"]
    flags = {flag for one in params for flag in one.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", options)) == flags
    rows = re.findall(
        r"^\| (.*?) \| ([\d.]+) nats \| ([\d.]+) nats \| ([\d.]+) \| (\d+) \|", DOCS, re.M
    )
    shown = {name: Tolerance(*map(float, numbers)) for name, *numbers in rows}
    assert shown == {"float32": TOLERANCES["float32"], "bfloat16, float16": OF_HALVES}

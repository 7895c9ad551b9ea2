"""`omnistage verify` of tiny checkpoints: equal, and other than those with one changed tensor.

The edges of Qwen3-Omni carry everything in one chunk here; elsewhere they stream.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnistage import Omni
from omnistage.server.cli.verifying.asking import Answered, answer_all
from omnistage.server.cli.verifying.judge import Verdict
from omnistage.server.cli.verifying.questions import questions_of
from omnistage.server.cli.verifying.report import Comparison
from omnistage.stage_configs.families import FAMILIES, KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.overrides import stage_override
from omnistage.stage_configs.pick import resolve
from omnistage.stages.messages.to_reference import Findings, ReferenceJob

pytestmark = [pytest.mark.engine, pytest.mark.shared]  # one case takes the session's `omni`

command: Any = import_module("omnistage.server.cli.verify")
TEXT = {"text", "log-probabilities"}
SPEECH = {"text", "codes", "samples"}
CHATS = {
    "text in": TEXT,
    "image in": TEXT,
    "audio in": TEXT,
    "video in": TEXT,
    "speech out": SPEECH,
    "speech about media": SPEECH,
}
SMALL = "dit.warm_up={height: 64, width: 64}"


@dataclass(frozen=True)
class Case:
    """A tiny model, what is compared of it, and the tensor in which another checkpoint differs.

    `differing`: the parts of answers that depend on it, given what was chosen before them.
    """

    model: str
    compared: Mapping[str, set[str]]
    tensor: str
    differing: set[str]
    file: str = "model.safetensors"
    changes: tuple[str, ...] = ()


CASES = [
    Case("qwen3-omni", CHATS, "talker.codec_head.weight", {"codes"}),
    Case("qwen2.5-omni", CHATS, "thinker.lm_head.weight", TEXT),
    Case(
        "qwen-image",
        {"image": {"pixels"}},
        "proj_out.weight",
        {"pixels"},
        "transformer/diffusion_pytorch_model.safetensors",
        (SMALL,),
    ),
]


@dataclass(frozen=True)
class Served:
    """What a server of the original checkpoint answered; and the folder of the changed one."""

    case: Case
    graph: StageGraph
    answers: dict[str, list[Answered]]
    changed: Path


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.model)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    case: Case = request.param
    folder = tmp_path_factory.mktemp("verify")
    changed = write(case.model, folder / "changed")
    change(changed / case.file, case.tensor)
    with ExitStack() as stack:
        if case.model == "qwen3-omni":
            model = request.getfixturevalue("tiny_checkpoint")
            graph = resolve(str(request.getfixturevalue("whole_edges")), str(model))
            omni = request.getfixturevalue("omni")
        else:
            original = str(write(case.model, folder / "original"))
            changes = [stage_override(one) for one in case.changes]
            graph = resolve(original, None, changes)
            graph = resolve(original, None, [*command.exact(graph), *changes])
            omni = stack.enter_context(Omni(graph, progress=False))
        return Served(case, graph, answered(omni, graph), changed)


def answered(omni: Omni, graph: StageGraph) -> dict[str, list[Answered]]:
    asked = {
        name: list(questions_of(graph, spec))
        for name, spec in graph.stages.items()
        if KINDS[spec.kind].reference is not None
    }
    return {name: answer_all(omni, some) for name, some in asked.items()}


def write(model: str, folder: Path) -> Path:
    writers = FAMILIES.part(model, lambda family: family.tiny)
    resolve_name(writers.write)(folder, 0)
    return folder


def change(file: Path, tensor: str) -> None:
    """Change one tensor of a file as much as it varies."""
    tensors = load_file(file)
    before = tensors[tensor]
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
    tensors[tensor] = (before + noise * before.float().std()).to(before.dtype)
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture
def reference_here(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's answers are there; references run in this process, which has their libraries."""

    def run(python: str, job: ReferenceJob) -> Findings:
        outcome: Findings = resolve_name(job.path)(job)
        return outcome

    monkeypatch.setattr(command, "ask_server", lambda graph, questions: served.answers)
    monkeypatch.setattr(command, "run_reference", run)


def parts_of(report: Comparison) -> dict[str, set[str]]:
    return {one.question: {part.what for part in one.parts} for one in report.questions}


@pytest.mark.usefixtures("reference_here")
def test_answers_equal_the_reference_with_the_same_checkpoint(served: Served) -> None:
    report = command.verified(served.graph, None, sys.executable)
    assert parts_of(report) == served.case.compared
    assert {part.verdict for one in report.questions for part in one.parts} == {Verdict.EQUAL}
    assert report.exit_code == 0
    assert report.references[0]["dtype"] == "float32"


@pytest.mark.usefixtures("reference_here")
def test_it_says_where_a_reference_with_another_tensor_differs(
    served: Served,
) -> None:
    report = command.verified(served.graph, str(served.changed), sys.executable)
    assert parts_of(report) == served.case.compared
    parts = [part for one in report.questions for part in one.parts]
    other = [part for part in parts if part.verdict is Verdict.DIFFERENT]
    assert {part.what for part in other} == served.case.differing
    assert all(part.first for part in other)
    assert report.exit_code == 1


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Another pipeline of Diffusers, and one with a changed tensor."""
    folder = tmp_path_factory.mktemp("verify")
    original, changed = write("sd3", folder / "original"), write("sd3", folder / "changed")
    change(changed / "transformer/diffusion_pytorch_model.safetensors", "proj_out.weight")
    return original, changed


def test_the_command_writes_a_report_and_exits_with_1_for_a_difference(
    pipelines: tuple[Path, Path], tmp_path: Path
) -> None:
    original, changed = pipelines
    file = tmp_path / "report.json"
    typed = [str(changed), "--reference", str(original), "--json", str(file), "--stage", SMALL]
    done = subprocess.run(
        [sys.executable, "-m", "omnistage.server.cli", "verify", *typed],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(file.read_text())
    (question,) = report["questions"]
    (part,) = question["parts"]
    assert (part["part"], part["verdict"], part["unit"]) == ("pixels", "different", "of 255")
    assert part["first_difference"].startswith("image 0, x ")
    assert part["largest"] > 1
    assert report["references"][0]["model"] == str(original)
    assert "different" in done.stdout

"""Edges that carry everything in one chunk, on another seed: the same answers as the reference."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.prompts import QUESTIONS, Question
from support.reference import Reference
from support.server import TinyServer, running_server

from omnistage.stages.pick import GRAPHS

pytestmark = pytest.mark.engine

SEED = 1


@pytest.fixture(scope="module")
def whole_server(
    tiny_checkpoints: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("whole")
    graph: dict[str, Any] = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    for edge in graph["edges"]:
        edge["chunk"] = "whole"
    file = folder / "whole.yaml"
    file.write_text(yaml.safe_dump(graph))
    model = str(tiny_checkpoints(SEED))
    with running_server(str(file), folder / "log", "--model", model) as running:
        yield running


@pytest.fixture(scope="module")
def other_reference(tiny_checkpoints: Callable[[int], Path]) -> Reference:
    return Reference(str(tiny_checkpoints(SEED)))


@pytest.mark.parametrize("question", QUESTIONS[1:6], ids=lambda question: question.name)
async def test_whole_edges_give_the_references_answer(
    question: Question, whole_server: TinyServer, other_reference: Reference
) -> None:
    answer = other_reference.answer(question, 16, 40)
    for reply in (
        await whole_server.ask(question.messages),
        await whole_server.stream(question.messages),
    ):
        assert reply.text == answer.text
        assert np.array_equal(reply.codes, answer.codes)
        assert len(reply.pcm) == len(answer.pcm)
        assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4

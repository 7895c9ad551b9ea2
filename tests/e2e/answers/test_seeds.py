"""Other seeds, on edges that carry everything in one chunk and on streamed ones: the same answers
as the reference. tests/e2e/answers/test_verify.py has whole edges in every run of the suite.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from support.api.prompts import QUESTIONS, Question
from support.oracles.reference import Reference
from support.servers.server import TinyServer, running_server
from support.servers.warm_up import warm_up

from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine


class Pair(NamedTuple):
    """A server and the reference over the same checkpoint."""

    server: TinyServer
    reference: Reference


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1, "whole"), id="1", marks=pytest.mark.repeat),
        pytest.param((2, "streamed"), id="2", marks=pytest.mark.repeat),
        pytest.param((3, "streamed"), id="3", marks=pytest.mark.repeat),
    ],
)
def pair(
    request: pytest.FixtureRequest,
    tiny_checkpoints: Callable[[int], Path],
    whole_edges: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    seed, edges = request.param
    file = whole_edges if edges == "whole" else GRAPHS / "qwen3_omni_tiny.yaml"
    log, model = tmp_path_factory.mktemp(edges) / "log", str(tiny_checkpoints(seed))
    with running_server(str(file), log, "--model", model) as running:
        asyncio.run(warm_up(running))
        yield Pair(running, Reference(model))


@pytest.mark.parametrize("question", QUESTIONS[1:6], ids=lambda question: question.name)
async def test_an_answer_equals_the_reference(question: Question, pair: Pair) -> None:
    answer = pair.reference.answer(question, 16, 40)
    for reply in (
        await pair.server.ask(question.messages),
        await pair.server.stream(question.messages),
    ):
        assert reply.text == answer.text
        assert np.array_equal(reply.codes, answer.codes)
        assert len(reply.pcm) == len(answer.pcm)
        assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4

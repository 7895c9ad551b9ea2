"""Other seeds, on streamed edges and on edges that carry everything in one chunk: the same answers
as the reference.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from support.prompts import QUESTIONS, Question
from support.reference import Reference
from support.server import TinyServer, running_server
from support.warm_up import warm_up

from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine


class Pair(NamedTuple):
    """A server and the reference over the same checkpoint."""

    server: TinyServer
    reference: Reference


@pytest.fixture(
    scope="module", params=[(1, "whole"), (2, "streamed"), (3, "streamed")], ids=lambda p: str(p[0])
)
def pair(
    request: pytest.FixtureRequest,
    tiny_checkpoints: Callable[[int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    seed, edges = request.param
    folder = tmp_path_factory.mktemp(edges)
    graph: dict[str, Any] = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    if edges == "whole":
        for edge in graph["edges"]:
            edge["chunk"] = "whole"
    file = folder / f"{edges}.yaml"
    file.write_text(yaml.safe_dump(graph))
    model = str(tiny_checkpoints(seed))
    with running_server(str(file), folder / "log", "--model", model) as running:
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

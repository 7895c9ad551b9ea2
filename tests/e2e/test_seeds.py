"""Other seeds, on edges that carry everything in one chunk and on streamed ones: the same answers
as the reference. What only images need is not installed here.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from support.blocked import BLOCKED, packages_of_others, without
from support.prompts import QUESTIONS, Question
from support.reference import Reference
from support.server import TinyServer, running_server
from support.warm_up import warm_up

from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine


OF_IMAGES = packages_of_others("qwen3_omni.thinker", "qwen3_omni.talker", "qwen3_omni.code2wav")


class Pair(NamedTuple):
    """A server and the reference over the same checkpoint."""

    server: TinyServer
    reference: Reference


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1, "whole"), id="1"),
        pytest.param((2, "streamed"), id="2", marks=pytest.mark.repeat),
        pytest.param((3, "streamed"), id="3", marks=pytest.mark.repeat),
    ],
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
    with pytest.MonkeyPatch.context() as patch:
        for name, value in without(folder / "site", OF_IMAGES).items():
            patch.setenv(name, value)
        with running_server(str(file), folder / "log", "--model", model) as running:
            asyncio.run(warm_up(running))
            yield Pair(running, Reference(model))


def test_it_starts_without_the_packages_of_images(pair: Pair) -> None:
    assert {"diffusers", "accelerate", "greenlet", "peft", "ftfy"} <= OF_IMAGES
    environment = Path(f"/proc/{pair.server.process.pid}/environ").read_bytes().decode()
    variables = dict(one.partition("=")[::2] for one in environment.split("\0"))
    assert set(variables[BLOCKED].split(",")) == OF_IMAGES
    found = subprocess.run([sys.executable, "-c", "import diffusers"], env=variables, stderr=-1)
    assert b"ModuleNotFoundError" in found.stderr


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

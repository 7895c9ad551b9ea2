"""Stages with several ranks or lanes answer as transformers' generate, and outlive a rank's death.

One case is of the suite; `make parallel` has all of them.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.api.prompts import QUESTIONS
from support.oracles.reference import Answer, Reference
from support.servers.parallel import collectives, parallel_graph, ranks, strike_rank
from support.servers.server import Reply, TinyServer, running_server
from support.servers.warm_up import warm_up
from support.waiting import until

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.engine

MAX_TOKENS, MAX_FRAMES = 16, 40
EXPERT_SIZE = 64  # a rank's part must be a multiple of 32
AT_ONCE = QUESTIONS[0], QUESTIONS[1], QUESTIONS[3], QUESTIONS[5]
# By itself vLLM says so after 8.5 s; on a quiet machine it is a tenth of a second.


@dataclass(frozen=True)
class Case:
    """A stage, and the arguments of its engine."""

    stage: str
    sizes: dict[str, int]
    num_ranks: int = 2
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.stage, *self.sizes])


IN_SUITE = Case("talker", {"tensor_parallel_size": 2}, options={"check_ranks": True})
MORE = (
    Case("thinker", {"tensor_parallel_size": 2}),
    Case("thinker", {"pipeline_parallel_size": 2}),
    Case("talker", {"data_parallel_size": 2}),
)
CASES = (IN_SUITE, *MORE) if os.environ.get("OMNISTAGE_PARALLEL") else (IN_SUITE,)


@pytest.fixture(scope="module")
def wide_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint whose experts two ranks can share."""
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-wide"
    write_tiny_checkpoint(folder, expert_size=EXPERT_SIZE)
    return folder


@pytest.fixture(scope="module")
def answers(wide_checkpoint: Path) -> list[Answer]:
    reference = Reference(str(wide_checkpoint))
    return [reference.answer(asked, MAX_TOKENS, MAX_FRAMES) for asked in AT_ONCE]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def log(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(str(case)) / "log"


@pytest.fixture(scope="module")
def server(
    case: Case, log: Path, wide_checkpoint: Path, answers: list[Answer]
) -> Iterator[TinyServer]:
    before = collectives()
    graph = parallel_graph(log.parent, case.stage, case.sizes, case.options)
    with running_server(str(graph), log, "--model", str(wide_checkpoint)) as running:
        asyncio.run(warm_up(running))
        yield running
    assert collectives() <= before


def said(log: Path) -> str:
    return log.read_text()


def assert_equal(reply: Reply, answer: Answer) -> None:
    assert reply.text == answer.text
    assert np.array_equal(reply.codes, answer.codes)
    assert len(reply.pcm) == len(answer.pcm)
    assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4


async def test_answers_alone_and_four_at_once_equal_the_reference(
    case: Case, server: TinyServer, answers: list[Answer]
) -> None:
    assert len(ranks(server, case.stage)) == case.num_ranks
    assert_equal(await server.ask(AT_ONCE[0].messages), answers[0])
    replies = await asyncio.gather(*(server.stream(asked.messages) for asked in AT_ONCE))
    for reply, answer in zip(replies, answers, strict=True):
        assert_equal(reply, answer)


async def test_ranks_that_compare_what_they_computed_agree_to_the_end(
    case: Case, server: TinyServer, log: Path
) -> None:
    long = {"talker": {"temperature": 0, "min_tokens": 80, "max_tokens": 80}}
    await asyncio.gather(*(server.ask(one.messages, stage_params=long) for one in AT_ONCE))
    if case.options.get("check_ranks"):
        await until(lambda: "2 ranks agree after 64 steps" in said(log))
    else:
        assert "ranks agree" not in said(log)
    assert "the ranks do not agree" not in said(log)


async def test_a_dead_rank_is_a_dead_stage_at_once_and_the_stage_comes_back(
    case: Case, server: TinyServer, answers: list[Answer]
) -> None:
    blow = await strike_rank(server, case.stage)
    logger.info("%s: dead after %.2f s", case, blow.dead_s)
    assert "no sign of life" not in str(blow.speech.error)
    assert blow.speech.error is not None
    assert case.stage in str(blow.speech.error["message"])
    if case.stage == "thinker":
        assert blow.text.error is not None
    else:
        assert blow.text.is_whole
    struck = {name for name in blow.before if blow.before[name] != blow.after[name]}
    assert struck == {case.stage}
    assert_equal(await server.ask(AT_ONCE[0].messages), answers[0])

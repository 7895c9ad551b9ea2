"""Thinkers that draft tokens: their answers and rows are those of transformers, without drafts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from prometheus_client import REGISTRY
from support.api.prompts import QUESTIONS, Question
from support.media.taken_media import opened_with_media
from support.models.draft_model import write_draft_model
from support.oracles.qwen2_5_omni import Qwen2_5Reference
from support.oracles.reference import Reference
from support.servers.drafts import Drafted
from support.stages.preempting import num_unfinished, stopped_engine
from support.stages.thinker_stage import (
    ENGINE,
    ThinkerHarness,
    positions_of,
    rows_of,
    running_thinker,
)
from support.waiting import until

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.edge import Edge
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

GRAPH = """
stages:
  thinker: {kind: FAMILY.thinker}
  talker: {kind: FAMILY.talker}
  vocoder: {kind: FAMILY.VOCODER}
edges:
  - {from: thinker, to: talker, hidden_states: all}
  - {from: talker, to: vocoder}
outputs: {text: thinker, audio: vocoder}
"""
PATH = ["thinker", "talker", "vocoder"]
NUM_TOKENS = 40
LONG = 1900  # tokens of an answer that nobody waits for
ROOM = {**ENGINE, "max_model_len": 2048}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
ASKED = QUESTIONS[:6]  # texts, a long one, images, a sound: more than the engine has seats


def graph(family: str, vocoder: str) -> str:
    return GRAPH.replace("FAMILY", family).replace("VOCODER", vocoder)


def greedy(question: Question, num_tokens: int = NUM_TOKENS) -> Request:
    body: dict[str, Any] = {"messages": question.messages, "temperature": 0}
    body["max_completion_tokens"] = num_tokens
    body["ignore_eos"] = num_tokens > NUM_TOKENS
    return Request(Chat(body), ["text", "audio"], PATH)


def check(
    thinker: ThinkerHarness,
    name: str,
    chunks: Sequence[Chunk[Edge]],
    tokens: Sequence[int],
    rows: torch.Tensor,
) -> None:
    """Every token; every position once, in order, and each row as transformers has it."""
    assert thinker.token_ids(name) == list(tokens)
    assert positions_of(list(chunks)) == list(range(len(rows)))
    parts = [chunk.tensors["hidden"].numpy().copy() for chunk in chunks if chunk.tensors]
    found = torch.from_numpy(np.concatenate(parts))
    torch.testing.assert_close(found, rows, atol=2e-3, rtol=2e-3)  # as without drafts


async def answered(
    thinker: ThinkerHarness, round_name: str
) -> dict[str, tuple[Question, list[Chunk[Edge]]]]:
    """Each question at once with the others, beside a request that is cancelled in its answer."""
    asked = {f"{round_name}-{question.name}": question for question in ASKED}
    cancelled = f"{round_name}-cancelled"
    going = asyncio.create_task(thinker.stage.serve(Opened(cancelled, greedy(ASKED[0], LONG))))
    await until(lambda: len(thinker.token_ids(cancelled)) > 20)
    with stopped_engine(thinker.stage):
        serving = asyncio.gather(
            *(
                thinker.stage.serve(opened_with_media(name, greedy(question)))
                for name, question in asked.items()
            )
        )
        await until(lambda: num_unfinished(thinker.stage) == 1 + len(asked))
    await until(lambda: any(thinker.token_ids(name) for name in asked))
    assert not going.done()
    going.cancel()
    _, found = await asyncio.gather(serving, rows_of(thinker, cancelled, *asked))
    await asyncio.gather(going, return_exceptions=True)
    sent = positions_of(found[cancelled])
    assert sent == list(range(len(sent)))
    await until(lambda: all(thinker.has_last(name) for name in asked))
    return {name: (question, found[name]) for name, question in asked.items()}


async def check_that_nothing_is_held(thinker: ThinkerHarness) -> None:
    ledger = Ledger(Path(thinker.ports.ledger))
    await until(lambda: not any(ledger.read().values()))


def check_that_some_drafts_were_accepted_and_some_not() -> None:
    drafted = Drafted.of(REGISTRY.collect())
    assert drafted.accepted > 0
    assert drafted.rejected > 0


@pytest_asyncio.fixture(loop_scope="module")
async def qwen3(
    tiny_checkpoint: Path, tmp_path: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[ThinkerHarness]:
    """With a draft model, which does not see media."""
    drafter = tmp_path / "drafter"
    write_draft_model(drafter, tiny_checkpoint)
    drafts = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": 3}
    engine = {**ROOM, "speculative_config": drafts}
    directory = run_directory / "qwen3"
    directory.mkdir()
    text = graph("qwen3_omni", "code2wav")
    async with running_thinker(text, tiny_checkpoint, directory, engine) as harness:
        yield harness


@torch.no_grad()
def expected_of_qwen3(reference: Reference, question: Question) -> tuple[list[int], torch.Tensor]:
    """The answer's tokens, and what enters the tapped layer at each position that was fed."""
    inputs = reference.inputs(question)
    result = reference.model.thinker.generate(
        **inputs,
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=reference.model.generation_config.eos_token_id,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    layer = reference.model.config.talker_config.accept_hidden_layer
    rows = torch.cat([step[layer] for step in result.hidden_states], dim=1)[0]
    return result.sequences[0, inputs["input_ids"].shape[1] :].tolist(), rows


async def test_with_a_draft_model_qwen3_omnis_rows_are_those_of_accepted_tokens(
    qwen3: ThinkerHarness, reference: Reference
) -> None:
    for name, (question, chunks) in (await answered(qwen3, "drafted")).items():
        check(qwen3, name, chunks, *expected_of_qwen3(reference, question))
    check_that_some_drafts_were_accepted_and_some_not()
    await check_that_nothing_is_held(qwen3)


@pytest_asyncio.fixture(loop_scope="module")
async def qwen2_5(
    tiny_qwen2_5_omni: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[ThinkerHarness]:
    """With drafts from the prompt and the answer themselves."""
    engine = {**ROOM, "speculative_config": NGRAM}
    directory = run_directory / "qwen2.5"
    directory.mkdir()
    text = graph("qwen2_5_omni", "token2wav").replace(", hidden_states: all", "")
    async with running_thinker(text, tiny_qwen2_5_omni, directory, engine) as harness:
        yield harness


async def test_with_n_grams_qwen2_5_omnis_rows_are_those_of_accepted_tokens(
    qwen2_5: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference
) -> None:
    for name, (question, chunks) in (await answered(qwen2_5, "ngram")).items():
        run = qwen2_5_reference.thinker(question, NUM_TOKENS)
        check(qwen2_5, name, chunks, run.tokens, run.rows)
    check_that_some_drafts_were_accepted_and_some_not()
    await check_that_nothing_is_held(qwen2_5)

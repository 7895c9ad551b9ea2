"""The bridge on real engines: prompts that overlap, and the thinker's tap."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from support.api.prompts import QUESTIONS, Question, sound, sound_part
from support.api.prompts import text as text_part
from support.media.taken_media import opened_with_media
from support.oracles.reference import Reference
from support.stages.overlapping import (
    ENGINE,
    GRAPH,
    LONGEST,
    NEXT_CHUNK_S,
    NUM_FRAMES,
    NUM_TOKENS,
    PATH,
    PICTURES,
    Harness,
    Heard,
    first_half,
    greedy,
    hear,
    held,
    hidden_states,
    long_answer,
    running_talker,
)
from support.stages.thinker_stage import ThinkerHarness, positions_of, rows_of, running_thinker
from support.waiting import until

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.edge import Edge
from omnistage.stages.messages.to_gateway import TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.step.step import OVERDUE

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def wide_talker(
    tiny_checkpoint: Path, run_directory: Path, reference: Reference, cpu_engine: None
) -> AsyncIterator[Harness]:
    """One whose step takes the longest prompt whole."""
    sizes = {"max_model_len": LONGEST, "max_num_batched_tokens": LONGEST}
    async with running_talker("wide", tiny_checkpoint, run_directory, reference, **sizes) as wide:
        yield wide


WORDS = "Tell me more about the fox and the hound. "


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def overlapped(
    thinker: "ThinkerHarness", wide_talker: Harness
) -> tuple[Heard, float, npt.NDArray[np.int32]]:
    """A prompt of 4k tokens that both read at once: what was sent, when it began, its codes."""
    parts = [part for image in PICTURES for part in (text_part(WORDS * 10), image)]
    messages = [{"role": "user", "content": [*parts, text_part("What is it?")]}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
        heard, begun_s = await hear(thinker, wide_talker, "long", messages)
    return heard, begun_s, (await wide_talker.codes({"long"}))["long"]


Overlapped = tuple[Heard, float, npt.NDArray[np.int32]]


async def test_the_talker_begins_to_read_a_long_prompt_before_the_thinker_has_read_it(
    overlapped: Overlapped,
) -> None:
    heard, begun_s, codes = overlapped
    assert 3500 < len(heard.prompt[0]) < LONGEST - NUM_FRAMES
    assert sum("hidden" in chunk.tensors for chunk in heard.chunks) > len(PICTURES)
    assert begun_s < heard.last_row_s
    assert len(codes) == NUM_FRAMES


async def test_codes_of_a_prompt_read_in_parts_are_those_of_one_read_whole(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard, _, codes = overlapped
    ids, grids = heard.prompt
    for chunk in heard.chunks:
        heard.hand_on(chunk, "whole", wide_talker)
    await wide_talker.generate("whole", ids, NUM_FRAMES, grids)
    assert np.array_equal((await wide_talker.codes({"whole"}))["whole"], codes)


async def test_many_prompts_in_parts_at_once_have_the_same_codes(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard, _, codes = overlapped
    ids, grids = heard.prompt
    names = {f"many-{number}" for number in range(6)}

    async def feed(name: str, lag_s: float) -> None:
        for chunk in heard.chunks:
            heard.hand_on(chunk, name, wide_talker)
            await asyncio.sleep(lag_s)

    await asyncio.gather(
        *(wide_talker.generate(name, ids, NUM_FRAMES, grids) for name in names),
        *(feed(name, 0.004 * number) for number, name in enumerate(sorted(names))),
    )
    for name, found in (await wide_talker.codes(names)).items():
        assert np.array_equal(found, codes), name


async def test_media_that_the_engine_has_lost_are_sent_again(thinker: ThinkerHarness) -> None:
    """As after a cancel between the front, which takes them for sent, and the engine."""

    async def asked(name: str) -> list[int]:
        content = [PICTURES[0], sound_part(sound(16_000)), text_part("What is it?")]
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, "temperature": 0, "max_completion_tokens": 12}
        opened = opened_with_media(name, Request(Chat(body), ["text"], PATH[:1]))
        await thinker.stage.serve(opened)
        await until(lambda: thinker.has_last(name))
        return thinker.token_ids(name)

    before = await asked("seen")
    assert before
    await thinker.stage._engine.engine_core.reset_mm_cache_async()
    assert await asked("lost") == before
    heads = [
        choice["delta"].get("role")
        for chunk in thinker.got["lost"]
        if isinstance(chunk.message, TextDelta)
        for choice in chunk.message.chunk["choices"]
    ]
    assert heads.count("assistant") == 1


async def test_a_cancel_in_the_middle_of_a_prompt_leaves_nothing(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard = overlapped[0]
    ids, grids = heard.prompt
    names = [f"cancelled-{number}" for number in range(4)]
    tasks = [
        asyncio.create_task(wide_talker.generate(name, ids, NUM_FRAMES, grids)) for name in names
    ]
    for name in names:
        for chunk in first_half(heard):
            heard.hand_on(chunk, name, wide_talker)
    await until(lambda: held(wide_talker).get("rows", 0) == 2)  # half of the seats
    assert held(wide_talker)["blocks"] > 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    drained = asyncio.create_task(wide_talker.codes({"nobody"}))  # gives credit back
    try:
        await until(lambda: not held(wide_talker))
    finally:
        drained.cancel()


async def test_a_prompt_whose_rest_never_comes_fails_by_its_deadline(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard = overlapped[0]
    ids, grids = heard.prompt
    for chunk in first_half(heard):
        heard.hand_on(chunk, "stuck", wide_talker)
    began = time.monotonic()
    _, reason = await wide_talker.generate("stuck", ids, NUM_FRAMES, grids)
    assert reason == OVERDUE
    assert time.monotonic() - began >= NEXT_CHUNK_S
    drained = asyncio.create_task(wide_talker.codes({"nobody"}))
    try:
        await until(lambda: not held(wide_talker))
    finally:
        drained.cancel()


def check_rows(chunks: list[Chunk[Edge]], expected: torch.Tensor) -> None:
    """Every position once, in order, and each row as the reference has it."""
    assert positions_of(chunks) == list(range(len(expected)))
    parts = [chunk.tensors["hidden"].numpy().copy() for chunk in chunks if chunk.tensors]
    found = torch.from_numpy(np.concatenate(parts))
    # Images differ most: their encoders add in another order.
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("question", QUESTIONS[3:6], ids=lambda q: q.name)
async def test_the_tap_exports_every_step_as_the_reference_has_it(
    question: Question, thinker: Any, reference: Reference
) -> None:
    name = f"tap-{question.name}"
    await thinker.stage.serve(opened_with_media(name, greedy(question, "text", "audio")))
    found = await rows_of(thinker, name)
    assert set(found) == {name}
    check_rows(found[name], hidden_states(reference, question, 8))


async def test_the_tap_exports_several_requests_at_once_each_as_alone(
    thinker: Any, reference: Reference
) -> None:
    asked = {f"beside-{question.name}": question for question in QUESTIONS[:6]}
    serving = (
        thinker.stage.serve(opened_with_media(name, greedy(question, "text", "audio")))
        for name, question in asked.items()
    )
    _, found = await asyncio.gather(asyncio.gather(*serving), rows_of(thinker, *asked))
    for name, question in asked.items():
        check_rows(found[name], hidden_states(reference, question, 8))


async def test_an_answer_that_is_not_spoken_sends_no_rows(thinker: Any) -> None:
    """The talker has no such request: it would keep them for nobody."""
    await thinker.stage.serve(opened_with_media("unspoken", greedy(QUESTIONS[3], "text")))
    await thinker.stage.serve(opened_with_media("spoken", greedy(QUESTIONS[3], "text", "audio")))
    assert set(await rows_of(thinker, "spoken")) == {"spoken"}


async def test_only_media_positions_leave_and_none_of_a_text_prompt(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
    for name, question in (("text-only", QUESTIONS[0]), ("media", QUESTIONS[3])):
        await thinker.stage.serve(opened_with_media(name, greedy(question, "text", "audio")))
    found = await rows_of(thinker, "media")
    assert set(found) == {"media"}
    positions = positions_of(found["media"])
    assert len(positions) == 4
    assert positions == sorted(set(positions))


WINDOW = 8


async def test_a_client_that_reads_nothing_holds_its_own_request_only(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on; what it makes is one output that grows, at most to the longest answer."""
    monkeypatch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
    monkeypatch.setattr("omnistage.connectors.sender.MAX_BACKLOG_CHUNKS", 16)
    thinker.unread = {"unread"}
    held = asyncio.create_task(thinker.stage.serve(long_answer("unread")))
    await thinker.stage.serve(long_answer("read"))
    await until(lambda: thinker.has_last("read"))
    assert len(thinker.token_ids("read")) == NUM_TOKENS
    assert len(thinker.got["unread"]) == WINDOW
    assert len(thinker.token_ids("unread")) < NUM_TOKENS
    assert thinker.ports.room.num_waiting == 1
    assert not held.done()
    await thinker.stage.alive()
    thinker.unread.clear()
    thinker.outputs.forget("unread")
    await asyncio.wait_for(held, 600)
    await until(lambda: thinker.has_last("unread"))
    assert thinker.token_ids("unread") == thinker.token_ids("read")
    assert len(thinker.got["unread"]) < 2 * WINDOW
    assert thinker.num_unfinished == 0


async def test_a_cancel_of_a_held_answer_frees_it(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
    thinker.unread = {"cancelled"}
    held = asyncio.create_task(thinker.stage.serve(long_answer("cancelled")))
    await until(lambda: thinker.ports.room.num_waiting == 1)
    assert thinker.num_unfinished == 1
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    await until(lambda: thinker.num_unfinished == 0)
    assert thinker.ports.room.num_waiting == 0
    thinker.ports.outputs.forget("cancelled")
    thinker.outputs.forget("cancelled")
    await until(lambda: thinker.ports.outputs.num_requests == 0)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def thinker(
    tiny_checkpoint: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[ThinkerHarness]:
    """The first stage of a graph whose edge wants every hidden state."""
    limits = {"image": len(PICTURES), "audio": 2, "video": 1}
    engine = {**ENGINE, "max_model_len": LONGEST, "limit_mm_per_prompt": limits}
    async with running_thinker(GRAPH, tiny_checkpoint, run_directory, engine) as harness:
        yield harness

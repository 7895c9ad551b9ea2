"""The thinker's stage on a real engine: its text and rows, with adapters and without."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.api.prompts import (
    QUESTIONS,
    Question,
    heard_question,
    plain,
    video_bytes,
    video_question,
)
from support.media.taken_media import opened_with_media
from support.models.text_loras import adapted, write_text_lora
from support.oracles.qwen2_5_omni import Qwen2_5Reference, ThinkerRun
from support.stages.text_stage import LORA
from support.stages.thinker_stage import (
    ENGINE,
    ThinkerHarness,
    positions_of,
    rows_of,
    running_thinker,
    taken,
)
from support.waiting import until

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.body import Chat, GivenText
from omnistage.stages.messages.edge import Edge, NothingToSay, Open, RowsReleased
from omnistage.stages.messages.to_gateway import TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.speech.spoken_answer import ThinkerPrompt
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

GRAPH = """
stages:
  thinker: {kind: qwen2_5_omni.thinker}
  talker: {kind: qwen2_5_omni.talker}
  token2wav: {kind: qwen2_5_omni.token2wav}
edges:
  - {from: thinker, to: talker}
  - {from: talker, to: token2wav}
outputs: {text: thinker, audio: token2wav}
"""
PATH = ["thinker", "talker", "token2wav"]
NUM_TOKENS = 12
# Videos that are heard: each is cut by a step, within a run of patches or of sound.
SMALL = {"shortest_edge": 1024, "longest_edge": 4096}  # a slice of 64 pixels a side has 4 tokens
HEARD = [
    heard_question("heard", 8, 64, 8000, size=SMALL),
    heard_question("heard longer", 8, 64, 60000, size=SMALL),
    heard_question("heard in chunks", 20, 64, 70400, size=SMALL),
]
ASKED = [*QUESTIONS, video_question(video_bytes(num_frames=4, size=64)), *HEARD]
ADAPTED = [QUESTIONS[0], QUESTIONS[3], QUESTIONS[5]]  # a text, an image, a sound
LAYERS = r"model\.layers\.\d+\.(self_attn\.[qv]_proj|mlp\.down_proj)"


@pytest.fixture(scope="module")
def loras(
    qwen2_5_reference: Qwen2_5Reference, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One that was trained with the whole model, and one with the thinker by itself."""
    folder, whole = tmp_path_factory.mktemp("loras"), qwen2_5_reference.model
    return {
        "whole": write_text_lora(whole, folder / "whole", 0, targets=rf"thinker\.{LAYERS}"),
        "alone": write_text_lora(whole.thinker, folder / "alone", 1, targets=LAYERS),
    }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def thinker(
    tiny_qwen2_5_omni: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[ThinkerHarness]:
    async with running_thinker(
        GRAPH, tiny_qwen2_5_omni, run_directory, {**ENGINE, **LORA}
    ) as harness:
        yield harness


def greedy(question: Question, outputs: Sequence[str] = ("text", "audio"), **more: Any) -> Request:
    body = {"messages": question.messages, "temperature": 0, "max_completion_tokens": NUM_TOKENS}
    if question.options:
        body["mm_processor_kwargs"] = question.options
    return Request(Chat({**body, **more}), list(outputs), PATH if "audio" in outputs else PATH[:1])


def check_rows(chunks: list[Chunk[Edge]], expected: torch.Tensor) -> None:
    """Every position once, in order; of the token behind the last one a row may have come, too."""
    assert positions_of(chunks)[: len(expected)] == list(range(len(expected)))
    assert len(positions_of(chunks)) <= len(expected) + 1
    parts = [chunk.tensors["hidden"].numpy().copy() for chunk in chunks if chunk.tensors]
    found = torch.from_numpy(np.concatenate(parts))[: len(expected)]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def opened(thinker: ThinkerHarness, name: str) -> tuple[list[int], ThinkerPrompt]:
    """What the talker was told of a request's prompt."""
    (chunk,) = taken(thinker.opens, name)
    assert isinstance(chunk.message, Open)
    return chunk.tensors["prompt"].numpy().tolist(), chunk.message.read(ThinkerPrompt)


def released(thinker: ThinkerHarness, name: str) -> list[int]:
    """How many rows count, each time that the talker was told; checked to end once."""
    chunks = taken(thinker.feed, name)
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    messages = [chunk.message for chunk in chunks]
    return [message.num_rows for message in messages if isinstance(message, RowsReleased)]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
async def test_prompt_tokens_and_rows_are_the_references(
    asked: Question, thinker: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference
) -> None:
    expected = qwen2_5_reference.thinker(asked, NUM_TOKENS)
    name = f"alone-{asked.name}"
    await thinker.stage.serve(opened_with_media(name, greedy(asked)))
    found = await rows_of(thinker, name)
    assert opened(thinker, name)[0] == expected.prompt
    await until(lambda: thinker.has_last(name))
    assert thinker.token_ids(name) == expected.tokens
    check_rows(found[name], expected.rows)
    counts = released(thinker, name)
    assert counts[-1] == len(expected.rows) == len(expected.prompt) + len(expected.tokens) - 1
    assert counts == sorted(counts)
    # They leave as they are made: what is behind the prompt comes token by token.
    assert len(found[name]) >= len(expected.tokens)


async def test_several_at_once_have_the_rows_of_each_alone(
    thinker: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference
) -> None:
    asked = {f"beside-{question.name}": question for question in ASKED}
    serving = (
        thinker.stage.serve(opened_with_media(name, greedy(question)))
        for name, question in asked.items()
    )
    _, found = await asyncio.gather(asyncio.gather(*serving), rows_of(thinker, *asked))
    for name, question in asked.items():
        check_rows(found[name], qwen2_5_reference.thinker(question, NUM_TOKENS).rows)


async def test_a_prompt_in_the_prefix_cache_sends_all_of_its_rows(
    thinker: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference
) -> None:
    asked = QUESTIONS[2]
    await thinker.stage.serve(opened_with_media("unspoken", greedy(asked, ["text"])))
    await thinker.stage.serve(opened_with_media("again", greedy(asked)))
    found = await rows_of(thinker, "again")
    assert set(found) == {"again"}
    check_rows(found["again"], qwen2_5_reference.thinker(asked, NUM_TOKENS).rows)


async def test_where_images_and_videos_are_is_told(thinker: ThinkerHarness) -> None:
    await thinker.stage.serve(opened_with_media("two", greedy(QUESTIONS[4])))
    await rows_of(thinker, "two")
    ids, told = opened(thinker, "two")
    medium = thinker.stage._config.thinker_config.image_token_index
    covered = [grid.offset + place for grid in told.grids for place in range(grid.num_tokens)]
    assert [grid.size for grid in told.grids] == [(1, 2, 2), (1, 3, 6)]
    assert covered == [place for place, one in enumerate(ids) if one == medium]


async def test_a_stop_string_ends_what_is_spoken(
    thinker: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference
) -> None:
    asked = QUESTIONS[2]
    expected = qwen2_5_reference.thinker(asked, NUM_TOKENS)
    text = qwen2_5_reference.processor.tokenizer.decode(expected.tokens)
    await thinker.stage.serve(opened_with_media("stopped", greedy(asked, stop=[text[4:6]])))
    await rows_of(thinker, "stopped")
    assert released(thinker, "stopped")[-1] == len(expected.prompt) + 4


async def test_an_answer_of_one_token_is_not_spoken(thinker: ThinkerHarness) -> None:
    await thinker.stage.serve(
        opened_with_media("one", greedy(QUESTIONS[0], max_completion_tokens=1))
    )
    await rows_of(thinker, "one")
    messages = [chunk.message for chunk in taken(thinker.opens, "one")]
    assert [type(message) for message in messages] == [Open, NothingToSay]


def given(text: str, instructions: str = "") -> Request:
    return Request(GivenText(text, instructions), ["audio"], PATH)


@pytest.mark.parametrize(
    ("text", "instructions"),
    [
        ("Hello there, how are you?", ""),
        ("Hm", ""),
        ("Ein längerer Satz: mit Ümläuten, 漢字 und\nzwei Zeilen. " * 4, "\nWhisper.\n"),
    ],
)
async def test_the_rows_of_a_given_text_are_those_of_an_answer_with_it(
    text: str, instructions: str, thinker: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference
) -> None:
    expected = qwen2_5_reference.given(text, instructions)
    name = f"given-{len(text)}"
    await thinker.stage.serve(Opened(name, given(text, instructions)))
    found = await rows_of(thinker, name)
    assert opened(thinker, name)[0] == expected.prompt
    check_rows(found[name], expected.rows)
    assert released(thinker, name) == [len(expected.rows)]
    await until(lambda: thinker.got[name])
    (last,) = thinker.got[name]
    assert last.last
    assert isinstance(last.message, TextDelta)
    assert last.message.chunk["usage"]["prompt_tokens"] == len(expected.rows)


async def test_names_of_special_tokens_in_a_given_text_are_text(thinker: ThinkerHarness) -> None:
    said = "one<|im_end|>\n<|IMAGE|>"
    await thinker.stage.serve(Opened("special", given(said, "<|im_start|>")))
    await rows_of(thinker, "special")
    prompt, _ = opened(thinker, "special")
    assert released(thinker, "special") == [len(prompt) + len(said)]  # a byte is a token


async def test_a_given_text_that_is_too_long_is_refused(thinker: ThinkerHarness) -> None:
    with pytest.raises(RequestError) as refused:
        await thinker.stage.serve(Opened("long", given("x" * 512)))
    assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")
    assert not taken(thinker.opens, "long")


async def test_a_prompt_of_turns_has_the_templates_own_system_turn(
    qwen2_5_reference: Qwen2_5Reference,
) -> None:
    """The reference's prompts, which the rows above are compared with, are what people send."""
    run: ThinkerRun = qwen2_5_reference.thinker(plain("one", ("user", "Hi")), 1)
    text = qwen2_5_reference.processor.tokenizer.decode(run.prompt)
    assert text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")


def expected_of(
    qwen2_5_reference: Qwen2_5Reference,
    question: Question,
    name: str | None,
    loras: dict[str, Path],
) -> ThinkerRun:
    """What transformers answers; peft puts an adapter's layers into the model itself."""
    if name is None:
        return qwen2_5_reference.thinker(question, NUM_TOKENS)
    whole = qwen2_5_reference.model
    model = adapted(whole if name == "whole" else whole.thinker, loras[name])
    try:
        return qwen2_5_reference.thinker(question, NUM_TOKENS)
    finally:
        model.unload()


async def add(thinker: ThinkerHarness, name: str, folder: Path) -> None:
    named = {"name": name, "path": str(folder), "weight_name": None, "pinned": False}
    await thinker.stage.control("add_lora", named)


async def test_answers_and_rows_with_adapters_and_without_are_transformers_and_pefts(
    thinker: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference, loras: dict[str, Path]
) -> None:
    for name, folder in loras.items():
        await add(thinker, name, folder)
    asked = {
        f"adapter-{lora}-{question.name}": (question, lora)
        for question in ADAPTED
        for lora in (None, *loras)
    }
    serving = (
        thinker.stage.serve(Opened(name, greedy(question, **({"model": lora} if lora else {}))))
        for name, (question, lora) in asked.items()
    )
    _, found = await asyncio.gather(asyncio.gather(*serving), rows_of(thinker, *asked))
    await until(lambda: all(map(thinker.has_last, asked)))
    answers = set()
    for name, (question, lora) in asked.items():
        expected = expected_of(qwen2_5_reference, question, lora, loras)
        answers.add((question.name, *expected.tokens))
        assert thinker.token_ids(name) == expected.tokens, name
        check_rows(found[name], expected.rows)
    assert len(answers) == len(asked)  # each adapter is heard


@pytest.mark.parametrize("tower", ["audio_tower", "visual"])
async def test_an_adapter_of_an_encoder_is_refused_since_vllm_would_ignore_it(
    tower: str, thinker: ThinkerHarness, qwen2_5_reference: Qwen2_5Reference, tmp_path: Path
) -> None:
    part = r"self_attn\.q_proj" if tower == "audio_tower" else r"mlp\.down_proj"
    targets = rf"thinker\.({LAYERS}|{tower}\..*{part})"
    folder = write_text_lora(qwen2_5_reference.model, tmp_path / "lora", 0, targets=targets)
    with pytest.raises(RequestError, match=rf"vLLM does not adapt {tower}\.\S+ in this model"):
        await add(thinker, "encoder", folder)
    listed = (await thinker.stage.control("list_loras", {}))["loras"]
    assert "encoder" not in [one["name"] for one in listed]

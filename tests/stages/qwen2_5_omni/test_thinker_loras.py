"""Adapters of Qwen2.5-Omni's thinker in a real engine: text and rows as transformers and peft."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.prompts import QUESTIONS, Question
from support.qwen2_5_omni_reference import Qwen2_5Reference, ThinkerRun
from support.text_loras import adapted, write_text_lora
from support.thinker_stage import ThinkerHarness, rows_of, running_thinker

from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.to_stage import Request
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
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 64 << 20,
    "limit_mm_per_prompt": {"image": 2, "audio": 1, "video": 1},
    "enable_lora": True,
    "max_loras": 2,
    "max_lora_rank": 8,
}
NUM_TOKENS = 12
ASKED = [QUESTIONS[0], QUESTIONS[3], QUESTIONS[5]]  # a text, an image, a sound
LAYERS = r"model\.layers\.\d+\.(self_attn\.[qv]_proj|mlp\.down_proj)"


@pytest.fixture(scope="module")
def transformers(tiny_qwen2_5_omni: Path) -> Qwen2_5Reference:
    return Qwen2_5Reference(str(tiny_qwen2_5_omni))


@pytest.fixture(scope="module")
def loras(
    transformers: Qwen2_5Reference, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One that was trained with the whole model, and one with the thinker by itself."""
    folder, whole = tmp_path_factory.mktemp("loras"), transformers.model
    return {
        "whole": write_text_lora(whole, folder / "whole", 0, targets=rf"thinker\.{LAYERS}"),
        "alone": write_text_lora(whole.thinker, folder / "alone", 1, targets=LAYERS),
    }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def thinker(
    tiny_qwen2_5_omni: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[ThinkerHarness]:
    async with running_thinker(GRAPH, tiny_qwen2_5_omni, run_directory, ENGINE) as harness:
        yield harness


def expected_of(
    transformers: Qwen2_5Reference, question: Question, name: str | None, loras: dict[str, Path]
) -> ThinkerRun:
    """What transformers answers; peft puts an adapter's layers into the model itself."""
    if name is None:
        return transformers.thinker(question, NUM_TOKENS)
    whole = transformers.model
    model = adapted(whole if name == "whole" else whole.thinker, loras[name])
    try:
        return transformers.thinker(question, NUM_TOKENS)
    finally:
        model.unload()


def greedy(question: Question, lora: str | None) -> Request:
    body = {"messages": question.messages, "temperature": 0, "max_completion_tokens": NUM_TOKENS}
    return Request(Chat(body if lora is None else {**body, "model": lora}), ["text", "audio"], PATH)


async def add(thinker: ThinkerHarness, name: str, folder: Path) -> None:
    named = {"name": name, "path": str(folder), "weight_name": None, "pinned": False}
    await thinker.stage.control("add_lora", named)


async def test_answers_and_rows_with_adapters_and_without_are_transformers_and_pefts(
    thinker: ThinkerHarness, transformers: Qwen2_5Reference, loras: dict[str, Path]
) -> None:
    for name, folder in loras.items():
        await add(thinker, name, folder)
    asked = {
        f"{lora}-{question.name}": (question, lora) for question in ASKED for lora in (None, *loras)
    }
    serving = (thinker.stage.serve(Opened(name, greedy(*about))) for name, about in asked.items())
    _, found = await asyncio.gather(asyncio.gather(*serving), rows_of(thinker, *asked))
    answers = set()
    for name, (question, lora) in asked.items():
        expected = expected_of(transformers, question, lora, loras)
        answers.add((question.name, *expected.tokens))
        assert thinker.token_ids(name) == expected.tokens, name
        parts = [one.tensors["hidden"].numpy().copy() for one in found[name] if one.tensors]
        rows = torch.from_numpy(np.concatenate(parts))[: len(expected.rows)]
        torch.testing.assert_close(rows, expected.rows, atol=1e-4, rtol=1e-4)
    assert len(answers) == len(asked)  # each adapter is heard


@pytest.mark.parametrize("tower", ["audio_tower", "visual"])
async def test_an_adapter_of_an_encoder_is_refused_since_vllm_would_ignore_it(
    tower: str, thinker: ThinkerHarness, transformers: Qwen2_5Reference, tmp_path: Path
) -> None:
    part = r"self_attn\.q_proj" if tower == "audio_tower" else r"mlp\.down_proj"
    targets = rf"thinker\.({LAYERS}|{tower}\..*{part})"
    folder = write_text_lora(transformers.model, tmp_path / "lora", 0, targets=targets)
    with pytest.raises(RequestError, match=rf"vLLM does not adapt {tower}\.\S+ in this model"):
        await add(thinker, "encoder", folder)
    listed = (await thinker.stage.control("list_loras", {}))["loras"]
    assert "encoder" not in [one["name"] for one in listed]

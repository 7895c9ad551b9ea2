"""Whisper as a transcriber through vLLM's own class: its tokens and text equal transformers'."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.picked_stage import PickedStage, picked_stage
from support.tiny_whisper import write_tiny_whisper
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.body import Transcribe
from omnistage.stages.messages.to_gateway import TranscriptDelta
from omnistage.stages.messages.to_stage import MediumPiece, Request
from omnistage.stages.worker.requests.coming_media import ComingMedia
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

RATE_HZ, NUM_TOKENS = 16_000, 20
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 64 << 20,
}


class Harness:
    """The stage, and transformers over the same folder."""

    def __init__(self, picked: PickedStage, folder: str) -> None:
        self._picked = picked
        self._number = 0
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._features = WhisperFeatureExtractor.from_pretrained(folder)
        self._model = WhisperForConditionalGeneration.from_pretrained(folder).float().eval()

    async def transcript(self, samples: Any, **body: Any) -> tuple[str, list[int]]:
        """Serve one request; its text and tokens."""
        self._number += 1
        name = f"request-{self._number}"
        coming = ComingMedia()
        piece = MediumPiece("sound-1", "sound", {"rate_hz": RATE_HZ})
        coming.add(name, piece, Tensor.from_numpy(samples))
        asked = Request(Transcribe(max_tokens=NUM_TOKENS, **body), ["transcript"])
        told = await self._picked.served(Opened(name, asked, media=coming.take(name)))
        choices = []
        for one in told:
            assert isinstance(one.message, TranscriptDelta)
            choices += one.message.chunk["choices"]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        return text, [one for choice in choices for one in choice.get("token_ids", ())]

    @torch.inference_mode()
    def expected(self, samples: Any, language: str | None, task: str) -> tuple[str, list[int]]:
        """What transformers' model writes behind Whisper's own marks, greedily."""
        features = self._features(samples, sampling_rate=RATE_HZ, return_tensors="pt")
        heard = self._model.model.encoder(features.input_features)
        ids = self._ids("startoftranscript")
        if language is None:
            languages = self._ids(*LANGUAGES)
            logits = self._next(heard, ids)[languages]
            (language_id,) = [languages[int(logits.argmax())]]
        else:
            (language_id,) = self._ids(language)
        ids += [language_id, *self._ids(task, "notimestamps")]
        made: list[int] = []
        while len(made) < NUM_TOKENS:
            made.append(int(self._next(heard, ids + made).argmax()))
            if made[-1] == self._tokenizer.eos_token_id:
                made.pop()
                break
        return self._tokenizer.decode(made, skip_special_tokens=True), made

    def _next(self, heard: Any, ids: list[int]) -> torch.Tensor:
        made = self._model(encoder_outputs=heard, decoder_input_ids=torch.tensor([ids]))
        logits: torch.Tensor = made.logits[0, -1]
        return logits

    def _ids(self, *marks: str) -> list[int]:
        return [self._tokenizer.convert_tokens_to_ids(f"<|{mark}|>") for mark in marks]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def whisper(
    tmp_path_factory: pytest.TempPathFactory, run_directory: Path, cpu_engine: None
) -> AsyncIterator[Harness]:
    """The one stage of the graph that is picked for the folder."""
    folder = tmp_path_factory.mktemp("whisper") / "tiny"
    write_tiny_whisper(folder)
    async with picked_stage(folder, "transcriber", run_directory, ENGINE) as picked:
        assert picked.ready.reading.audio_rate_hz == RATE_HZ
        yield Harness(picked, str(folder))


@pytest.mark.parametrize(
    ("language", "to_english"), [("en", False), ("de", False), ("de", True), (None, False)]
)
async def test_its_tokens_and_text_equal_transformers(
    language: str | None, to_english: bool, whisper: Harness
) -> None:
    samples = (0.1 * np.random.default_rng(3).standard_normal(2 * RATE_HZ)).astype(np.float32)
    task = "translate" if to_english else "transcribe"
    text, ids = whisper.expected(samples, language, task)
    assert ids
    got = await whisper.transcript(samples, language=language, to_english=to_english)
    assert got == (text, ids)

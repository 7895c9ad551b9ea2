"""Whisper as a transcriber through vLLM's own class: its tokens and text equal transformers'."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.models.tiny_whisper import NUM_POSITIONS, WhisperReference, write_tiny_whisper
from support.stages.picked_stage import PickedStage, picked_stage

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.body import Transcribe
from omnistage.stages.messages.to_gateway import TranscriptDelta
from omnistage.stages.messages.to_stage import MediumPiece, Request
from omnistage.stages.worker.requests.coming_media import ComingMedia
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

RATE_HZ, NUM_TOKENS = 16_000, 12
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
        self.reference = WhisperReference(folder)

    async def transcript(self, samples: Any, **body: Any) -> tuple[str, list[int], str]:
        """Serve one request; its text, its tokens and why it ended."""
        self._number += 1
        name = f"request-{self._number}"
        coming = ComingMedia()
        piece = MediumPiece("sound-1", "sound", {"rate_hz": RATE_HZ})
        coming.add(name, piece, Tensor.from_numpy(samples))
        asked = Request(Transcribe(**{"max_tokens": NUM_TOKENS, **body}), ["transcript"])
        told = await self._picked.served(Opened(name, asked, media=coming.take(name)))
        choices = []
        for one in told:
            assert isinstance(one.message, TranscriptDelta)
            choices += one.message.chunk["choices"]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        ids = [one for choice in choices for one in choice.get("token_ids", ())]
        return text, ids, choices[-1]["finish_reason"]

    def pieces(self, samples: Any) -> list[Any]:
        """How vLLM cuts long audio."""
        pieces: list[Any] = self._picked.stage._prompts.cut(samples)
        return pieces


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[True, False])
async def whisper(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    run_directory: Path,
    cpu_engine: None,
) -> AsyncIterator[Harness]:
    """The one stage of the graph that is picked for the folder; one finds an end, one does not."""
    folder = tmp_path_factory.mktemp("whisper") / "tiny"
    write_tiny_whisper(folder, ends=request.param)
    async with picked_stage(folder, "transcriber", run_directory, ENGINE) as picked:
        assert picked.ready.reading.audio_rate_hz == RATE_HZ
        assert picked.ready.max_model_len == NUM_POSITIONS
        yield Harness(picked, str(folder))


def noise(seconds: float, seed: int = 3) -> Any:
    """Something to be heard."""
    drawn = np.random.default_rng(seed).standard_normal(round(seconds * RATE_HZ))
    return (0.1 * drawn).astype(np.float32)


@pytest.mark.parametrize(
    ("language", "to_english"), [("en", False), ("de", False), ("de", True), (None, False)]
)
@pytest.mark.parametrize("most", [NUM_TOKENS, None])
async def test_its_tokens_and_text_equal_transformers_to_their_end(
    language: str | None, to_english: bool, most: int | None, whisper: Harness
) -> None:
    samples = noise(2)
    task = "translate" if to_english else "transcribe"
    text, ids, ended_by = whisper.reference.expected(samples, language, task, most or NUM_POSITIONS)
    assert ids
    got = await whisper.transcript(
        samples, language=language, to_english=to_english, max_tokens=most
    )
    # A text that fills the context is whole as far as the model goes, unless the client bounds it.
    assert got == (text, ids, "stop" if most is None else ended_by)


async def test_long_audio_is_transcribed_piece_by_piece_whether_they_end_or_not(
    whisper: Harness,
) -> None:
    samples = np.concatenate([noise(28, 1), np.zeros(RATE_HZ // 2, np.float32), noise(4, 2)])
    pieces = whisper.pieces(samples)
    assert len(pieces) == 2
    parts = [whisper.reference.expected(piece, "en", "transcribe") for piece in pieces]
    assert parts[0][0] != parts[1][0]
    text, ids, ended_by = await whisper.transcript(samples, language="en", max_tokens=None)
    assert ids == [one for _, made, _ in parts for one in made]
    assert (text, ended_by) == (" ".join(words for words, _, _ in parts), "stop")

"""A model of speech recognition as a stage, in a real engine: its tokens equal transformers'."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from support.stages.picked_stage import PickedStage, picked_stage
from transformers import AutoProcessor, Qwen3ASRForConditionalGeneration

from omnistage.connectors.chunk import Tensor
from omnistage.stages.checkpoint.tiny_asr import CHUNK_S, write_tiny_asr
from omnistage.stages.messages.body import Transcribe
from omnistage.stages.messages.to_gateway import TranscriptDelta
from omnistage.stages.messages.to_stage import MediumPiece, Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.requests.coming_media import ComingMedia
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

RATE_HZ = 16_000
NUM_TOKENS = 32
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 16 << 20,
}
Samples = npt.NDArray[np.float32]


def speech(seconds: float, seed: int = 0) -> Samples:
    """Tones that change, with noise: something for the encoder to hear."""
    rng = np.random.default_rng(seed)
    hz = np.repeat(rng.uniform(100, 2000, 1 + int(seconds * 4)), RATE_HZ // 4)
    hz = hz[: int(seconds * RATE_HZ)]
    tones = 0.3 * np.sin(2 * np.pi * np.cumsum(hz) / RATE_HZ)
    return (tones + 0.02 * rng.standard_normal(len(hz))).astype(np.float32)


class Harness:
    """A stage, and transformers over the same folder."""

    def __init__(self, picked: PickedStage, model: str) -> None:
        self._picked = picked
        self._number = 0
        self._processor = AutoProcessor.from_pretrained(model)
        self._model = Qwen3ASRForConditionalGeneration.from_pretrained(
            model, dtype=torch.float32
        ).eval()

    @property
    def stage(self) -> Any:
        return self._picked.stage

    async def chunks(self, samples: Samples, **body: Any) -> list[dict[str, Any]]:
        """Serve one request; the chunks of its transcript."""
        self._number += 1
        name = f"request-{self._number}"
        coming = ComingMedia()
        piece = MediumPiece("sound-1", "sound", {"rate_hz": RATE_HZ})
        coming.add(name, piece, Tensor.from_numpy(samples))
        opened = Opened(name, Request(Transcribe(**body), ["transcript"]), media=coming.take(name))
        told = await self._picked.served(opened)
        assert [chunk.last for chunk in told] == [False] * (len(told) - 1) + [True]
        chunks = []
        for chunk in told:
            assert isinstance(chunk.message, TranscriptDelta)
            chunks.append(chunk.message.chunk)
        return chunks

    async def transcript(self, samples: Samples, **body: Any) -> tuple[str, list[int], Any]:
        """The text, its tokens, and the usage."""
        *chunks, whole = await self.chunks(samples, **body)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        ids = [one for choice in choices for one in choice.get("token_ids", ())]
        assert choices[-1]["finish_reason"] in ("stop", "length")
        return text, ids, whole["usage"]

    def expected(
        self, samples: Samples, language: str = "", context: str = "", most: int | None = NUM_TOKENS
    ) -> tuple[str, list[int], int]:
        """What transformers generates of the prompt as Qwen documents it, and its length."""
        system = f"<|im_start|>system\n{context}<|im_end|>\n" if context else ""
        audio = "<|audio_start|><|audio_pad|><|audio_end|>"
        begun = f"language {language}<asr_text>" if language else ""
        prompt = f"{system}<|im_start|>user\n{audio}<|im_end|>\n<|im_start|>assistant\n{begun}"
        inputs = self._processor(text=prompt, audio=samples)
        length = inputs["input_ids"].shape[1]
        most = most or ENGINE["max_model_len"] - length
        with torch.inference_mode():
            ids = self._model.generate(**inputs, max_new_tokens=most, do_sample=False)
        made = ids[0, length:].tolist()
        tokenizer = self._processor.tokenizer
        made = made[:-1] if made[-1] == tokenizer.eos_token_id else made
        return tokenizer.decode(made), made, length


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def transcriber(
    tmp_path_factory: pytest.TempPathFactory, run_directory: Path, cpu_engine: None
) -> AsyncIterator[Harness]:
    """The one stage of the graph that is picked for the folder, made by its kind."""
    folder = tmp_path_factory.mktemp("transcriber") / "tiny"
    write_tiny_asr(folder)
    async with picked_stage(folder, "transcriber", run_directory, ENGINE) as picked:
        assert picked.ready.max_model_len == ENGINE["max_model_len"]
        assert picked.ready.reading.audio_rate_hz == RATE_HZ
        yield Harness(picked, str(folder))


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.7, 3.9])
async def test_its_tokens_equal_transformers(seconds: float, transcriber: Harness) -> None:
    samples = speech(seconds, seed=int(10 * seconds))
    text, ids, length = transcriber.expected(samples)
    said, told, usage = await transcriber.transcript(samples, max_tokens=NUM_TOKENS)
    assert ids
    assert (said, told) == (text, ids)
    assert usage["prompt_tokens"] == length
    audio = usage["prompt_tokens_details"]["multimodal_tokens"]["audio"]
    assert 0 < audio < length
    assert usage["completion_tokens"] in (len(ids), len(ids) + 1)


async def test_speech_that_differs_is_transcribed_differently(transcriber: Harness) -> None:
    texts = {(await transcriber.transcript(speech(2, seed)))[0] for seed in range(4)}
    assert len(texts) == 4


@pytest.mark.parametrize("language", ["en", "en-US", "English", "english"])
async def test_a_language_and_a_prompt_are_in_the_model_s_prompt(
    language: str, transcriber: Harness
) -> None:
    samples = speech(2)
    text, ids, length = transcriber.expected(samples, "English", "Omnistage, Qwen")
    plain, _, _ = transcriber.expected(samples)
    said, told, usage = await transcriber.transcript(
        samples, language=language, prompt="Omnistage, Qwen", max_tokens=NUM_TOKENS
    )
    assert (said, told, usage["prompt_tokens"]) == (text, ids, length)
    assert text != plain


async def test_an_unknown_language_is_refused_by_its_name(transcriber: Harness) -> None:
    with pytest.raises(RequestError) as caught:
        await transcriber.chunks(speech(1), language="xx")
    assert (caught.value.status, caught.value.param) == (400, "language")
    assert "en" in caught.value.message


async def test_long_speech_is_the_transcripts_of_its_pieces_in_order(transcriber: Harness) -> None:
    samples = speech(3 * CHUNK_S + 1)
    pieces = transcriber.stage._prompts.cut(samples)
    assert len(pieces) > 3
    assert sum(map(len, pieces)) == len(samples)
    parts = [transcriber.expected(piece, most=None) for piece in pieces]
    said, told, usage = await transcriber.transcript(samples)
    assert said == " ".join(text for text, _, _ in parts if text)
    assert told == [one for _, ids, _ in parts for one in ids]
    assert usage["prompt_tokens"] == sum(length for _, _, length in parts)


async def test_a_bound_of_tokens_is_that_of_all_pieces(transcriber: Harness) -> None:
    samples = speech(3 * CHUNK_S + 1)
    _, whole, _ = await transcriber.transcript(samples)
    for bound in (1, 5, len(whole) // 2):
        *chunks, last = await transcriber.chunks(samples, max_tokens=bound)
        assert last["usage"]["completion_tokens"] == bound
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_each_token_has_its_logprob_if_asked_for(transcriber: Harness) -> None:
    *chunks, _ = await transcriber.chunks(speech(2), logprobs=True, max_tokens=NUM_TOKENS)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    entries = [
        one for choice in choices for one in choice.get("logprobs", {"content": ()})["content"]
    ]
    ids = [one for choice in choices for one in choice.get("token_ids", ())]
    assert len(entries) == len(ids) > 0
    assert all(entry["logprob"] <= 0 for entry in entries)
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert "".join(entry["token"] for entry in entries) == text


async def test_a_cancelled_transcript_leaves_nothing_in_the_engine(transcriber: Harness) -> None:
    serving = asyncio.create_task(transcriber.chunks(speech(3 * CHUNK_S + 1)))
    await asyncio.sleep(0.05)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    engine = transcriber.stage._engine
    async with asyncio.timeout(600):
        while engine.output_processor.has_unfinished_requests():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await transcriber.transcript(speech(1))

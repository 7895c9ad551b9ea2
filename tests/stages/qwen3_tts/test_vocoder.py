"""Qwen3-TTS's vocoder: the package's samples, in any chunks, whoever shares the batch."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from references.qwen3_tts_inputs import STRIDE, codes
from safetensors.torch import load_file, save_file

from omnistage.stages.qwen3_tts.checkpoint.speech_tokenizer_config import (
    FOLDER,
    write_real_size_speech_tokenizer_config,
)
from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import StreamPiece, to_int16
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.streams import DecodedAudio, Limits

CPU = torch.device("cpu")
SAMPLES_A_FRAME = 1920
TOLERANCE = 1e-6
CHUNKINGS = ([24], [1] * 24, [1, 23], [2, 3, 8, 11], [7, 7, 7, 3], [9, 15])

Codes = npt.NDArray[np.int32]


def load(folder: Path, num_slots: int, dtype: torch.dtype = torch.float64) -> StreamingVocoder:
    return StreamingVocoder.from_checkpoint(str(folder), CPU, dtype, num_slots)


def decode(vocoder: StreamingVocoder, slots: list[Slot], frames: list[Codes]) -> torch.Tensor:
    """The next frames of streams, which go on; all samples are heard at once."""
    pieces = [StreamPiece(slot, own) for slot, own in zip(slots, frames, strict=True)]
    pcm, heard, unfinished = vocoder.decode(pieces)
    for piece in pieces:
        vocoder.advance(piece)
    assert all(one == slice(0, None) for one in heard)
    assert not unfinished
    assert pcm.shape == (len(slots), SAMPLES_A_FRAME * len(frames[0]))
    return pcm


def decode_alone(vocoder: StreamingVocoder, frames: Codes) -> torch.Tensor:
    """One stream's, as one chunk."""
    slot = vocoder.open()
    pcm = decode(vocoder, [slot], [frames])[0]
    vocoder.close(slot)
    return pcm


@pytest.mark.parametrize("sizes", CHUNKINGS, ids=str)
def test_its_samples_are_the_packages_in_any_chunks(
    voice_model: Path, recorded: dict[str, torch.Tensor], sizes: list[int]
) -> None:
    """In float64 but for norms and rotations, which are float32 in both."""
    vocoder = load(voice_model, 2, torch.float64)
    slots = [vocoder.open(), vocoder.open()]
    starts = np.cumsum(sizes)[:-1]
    parts = [decode(vocoder, slots, [*part]) for part in np.split(codes(), starts, axis=1)]
    samples = torch.cat(parts, dim=1)
    expected = recorded["samples"]
    assert expected.std() > 0.05
    assert expected.abs().max() < 1
    assert (expected[0] - expected[1]).std() > 0.05
    assert (samples[:, ::STRIDE] - expected).abs().max() <= TOLERANCE


def test_the_samples_of_a_prefix_are_the_beginning_of_the_wholes(voice_model: Path) -> None:
    vocoder = load(voice_model, 1)
    frames = codes()[0]
    whole = decode_alone(vocoder, frames)
    for num_frames in (1, 2, 10, 23):
        part = decode_alone(vocoder, frames[:num_frames])
        assert (part - whole[: len(part)]).abs().max() <= TOLERANCE
    assert vocoder.codec.num_held_back == 0


def test_streams_that_join_and_leave_a_batch_sound_as_alone(voice_model: Path) -> None:
    vocoder = load(voice_model, 5)
    frames = np.concatenate([codes(), codes()[:, ::-1]])
    alone = [decode_alone(vocoder, own) for own in frames]
    slots: list[Slot] = []
    parts: list[list[torch.Tensor]] = [[] for _ in frames]
    for tick in range(12 + len(frames)):
        if tick < len(frames):
            slots.append(vocoder.open())
        rows = [row for row in range(len(slots)) if 0 <= 2 * (tick - row) < 24]
        if not rows:
            continue
        batch = [frames[row][2 * (tick - row) :][:2] for row in rows]
        decoded = decode(vocoder, [slots[row] for row in rows], batch)
        for row, pcm in zip(rows, decoded, strict=True):
            parts[row].append(pcm)
    for row, expected in enumerate(alone):
        assert (torch.cat(parts[row]) - expected).abs().max() <= TOLERANCE


def test_a_reused_slot_starts_fresh(voice_model: Path) -> None:
    vocoder = load(voice_model, 1)
    first, second = codes()
    fresh = decode_alone(load(voice_model, 1), second)
    slot = vocoder.open()
    for part in np.split(first, 3):
        decode(vocoder, [slot], [part])
    assert vocoder.num_free == 0
    vocoder.close(slot)
    assert torch.equal(decode_alone(vocoder, second), fresh)


def test_a_decode_can_be_done_again(voice_model: Path) -> None:
    """Whatever a decode wrote, a stream that has not advanced is where it was."""
    vocoder = load(voice_model, 2)
    slots = [vocoder.open(), vocoder.open()]
    for part in np.split(codes(), [1, 6], axis=1):
        pieces = [StreamPiece(slot, own) for slot, own in zip(slots, part, strict=True)]
        vocoder.decode(
            [StreamPiece(slot, np.zeros_like(own)) for slot, own in zip(slots, part, strict=True)]
        )
        once = vocoder.decode(pieces).pcm
        assert torch.equal(once, vocoder.decode(pieces).pcm)
        assert torch.equal(once, decode(vocoder, slots, [*part]))


def test_a_references_frames_go_ahead_and_are_not_heard(
    voice_model: Path, recorded: dict[str, torch.Tensor]
) -> None:
    """As cloning is in the package: decoded together, and cut off."""
    engine = DecoderEngine(load(voice_model, 2), Limits(piece_frames=4))
    num_lead = 9
    for name, own in zip("ab", codes(), strict=True):
        engine.open(name, own[:num_lead])
        engine.push(name, own[num_lead : num_lead + 2], last=False)
        engine.push(name, own[num_lead + 2 :], last=True)
    heard: dict[str, list[npt.NDArray[np.int16]]] = {"a": [], "b": []}
    while answers := engine.step():
        for answer in answers:
            assert isinstance(answer, DecodedAudio)
            heard[answer.request_id].append(answer.pcm)
    skipped = num_lead * SAMPLES_A_FRAME
    first = -(-skipped // STRIDE) * STRIDE  # recorded, at or after the beginning
    for name, samples in zip("ab", recorded["samples"], strict=True):
        pcm = np.concatenate(heard[name])
        assert len(pcm) == (codes().shape[1] - num_lead) * SAMPLES_A_FRAME
        expected = to_int16(samples[first // STRIDE :]).numpy().astype(int)
        assert np.abs(pcm[first - skipped :: STRIDE] - expected).max() <= 1


def test_reads_only_the_decoder_of_the_speech_tokenizer(voice_model: Path, tmp_path: Path) -> None:
    """Of its files those that hold a part of the decoder; the talker's are not opened."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "config.json").write_bytes((voice_model / FOLDER / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors file")
    stored = load_file(voice_model / FOLDER / "model.safetensors")
    decoder = {name: one for name, one in stored.items() if name.startswith("decoder.")}
    assert 0 < len(decoder) < len(stored)
    weight_map = dict.fromkeys(set(stored) - set(decoder), "a-shard-that-is-not-here.safetensors")
    for shard in ("one.safetensors", "two.safetensors"):
        part = dict([*decoder.items()][shard == "two.safetensors" :: 2])
        save_file(part, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    frames = codes()[0][:3]
    expected = decode_alone(load(voice_model, 1), frames)
    assert torch.equal(decode_alone(load(tmp_path, 1), frames), expected)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    settings = {"model_type": "qwen3_tts_tokenizer_25hz"}
    (tmp_path / FOLDER / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="qwen3_tts_tokenizer_25hz, not qwen3_tts_tokenizer_12hz"):
        load(tmp_path, 1)


def test_random_weights_need_only_the_config(voice_model: Path, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    config = (voice_model / FOLDER / "config.json").read_bytes()
    (tmp_path / FOLDER / "config.json").write_bytes(config)
    vocoder = StreamingVocoder.from_checkpoint(
        str(tmp_path), CPU, torch.bfloat16, 1, has_weights=False
    )
    pcm = decode_alone(vocoder, codes()[0][:2])
    assert pcm.isfinite().all()
    assert pcm.std() > 0
    assert pcm.abs().max() < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_memory_is_told_before_it_is_taken(dtype: torch.dtype, voice_model: Path) -> None:
    told = StreamingVocoder.memory(str(voice_model), dtype, 5)
    vocoder = load(voice_model, 5, dtype)
    held = sum(one.nbytes for one in vocoder.model.parameters())
    assert told == {"weights": held, "slots": 5 * vocoder.slots.bytes_each}
    assert 0 < told["slots"] <= vocoder.slots.rows.nbytes


def test_the_real_sizes_memory_is_told_without_weights(tmp_path: Path) -> None:
    write_real_size_speech_tokenizer_config(tmp_path / FOLDER)
    told = StreamingVocoder.memory(str(tmp_path), torch.bfloat16, 64)
    megabytes = {name: num_bytes / 2**20 for name, num_bytes in told.items()}
    assert megabytes == pytest.approx({"weights": 217.5, "slots": 317.0}, abs=0.1)

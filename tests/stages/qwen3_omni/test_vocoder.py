import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import StreamPiece
from omnistage.stages.vocoder.slots import Slot

TOLERANCE = 1e-5
CHUNKINGS = ([23], [1] * 23, [2, 4, 8, 9], [7, 7, 7, 2], [1, 22])


def random_codes(num_streams: int, num_frames: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 32, (num_streams, 4, num_frames), generator=generator)


@torch.inference_mode()
def decode_whole(model: Qwen3OmniMoeCode2Wav, codes: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = model(codes)[:, 0]
    return whole


def pieces_of(states: list[Slot], codes: torch.Tensor) -> list[StreamPiece[Slot]]:
    """Codes [B, codebooks, n]."""
    frames = codes.transpose(1, 2).int().numpy()
    return [StreamPiece(state, row) for state, row in zip(states, frames, strict=True)]


def continue_streams(
    vocoder: StreamingVocoder, states: list[Slot], codes: torch.Tensor
) -> list[torch.Tensor]:
    pieces = pieces_of(states, codes)
    pcm, heard, _ = vocoder.decode(pieces)
    for piece in pieces:
        vocoder.advance(piece)
    return [row[sound] for row, sound in zip(pcm, heard, strict=True)]


@pytest.mark.parametrize("sizes", CHUNKINGS, ids=str)
def test_chunks_equal_the_whole_decode(
    vocoder_model: Qwen3OmniMoeCode2Wav, sizes: list[int]
) -> None:
    vocoder = StreamingVocoder(vocoder_model, num_slots=2)
    codes = random_codes(2, sum(sizes))
    states = [vocoder.open() for _ in codes]
    parts = [
        torch.stack(continue_streams(vocoder, states, part))
        for part in torch.split(codes, sizes, dim=-1)
    ]
    whole = decode_whole(vocoder_model, codes)
    assert parts[0].shape[1] == 1920 * sizes[0] - 555
    assert [part.shape[1] for part in parts[1:]] == [1920 * size for size in sizes[1:]]
    assert torch.cat(parts, dim=1).shape == whole.shape
    assert (whole[0] - whole[1]).std() > 0.01
    assert whole.abs().max() < 1
    assert (torch.cat(parts, dim=1) - whole).abs().max() <= TOLERANCE


def test_streams_at_different_positions_share_a_batch(
    vocoder_model: Qwen3OmniMoeCode2Wav,
) -> None:
    vocoder = StreamingVocoder(vocoder_model, num_slots=5)
    codes = random_codes(3, 20)
    states: list[Slot] = []
    parts: list[list[torch.Tensor]] = [[], [], []]
    for tick in range(10):
        if tick < 3:
            states.append(vocoder.open())
        active = [row for row in range(len(states)) if 2 * (tick - row) < 20]
        ahead = torch.stack([codes[row, :, 2 * (tick - row) :][:, :2] for row in active])
        decoded = continue_streams(vocoder, [states[row] for row in active], ahead)
        for row, pcm in zip(active, decoded, strict=True):
            parts[row].append(pcm)
    whole = decode_whole(vocoder_model, codes)
    for row, pieces in enumerate(parts):
        pcm = torch.cat(pieces)
        assert (pcm - whole[row, : len(pcm)]).abs().max() <= TOLERANCE


def test_a_row_does_not_depend_on_its_batch(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = StreamingVocoder(vocoder_model, num_slots=9)
    codes = random_codes(8, 12)
    together = [vocoder.open() for _ in codes]
    alone = vocoder.open()
    for part in torch.split(codes, [2, 4, 6], dim=-1):
        order = torch.randperm(8).tolist()
        rows = continue_streams(vocoder, [together[row] for row in order], part[order])
        (expected,) = continue_streams(vocoder, [alone], part[:1])
        assert (rows[order.index(0)] - expected).abs().max() <= TOLERANCE


def test_a_reused_slot_starts_fresh(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = StreamingVocoder(vocoder_model, num_slots=1)
    used = vocoder.open()
    for part in torch.split(random_codes(1, 9, seed=1), [3, 3, 3], dim=-1):
        continue_streams(vocoder, [used], part)
    places = {used.row, used.next_row}
    assert vocoder.num_free == 0
    vocoder.close(used)
    codes = random_codes(1, 5, seed=2)
    reused = vocoder.open()
    assert {reused.row, reused.next_row} == places
    (pcm,) = continue_streams(vocoder, [reused], codes)
    assert (pcm - decode_whole(vocoder_model, codes)[0]).abs().max() <= TOLERANCE


def test_a_decode_can_be_done_again(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    """Whatever a decode wrote, a stream that has not advanced is where it was."""
    vocoder = StreamingVocoder(vocoder_model, num_slots=3)
    codes = random_codes(3, 12)
    states = [vocoder.open() for _ in codes]
    for part in torch.split(codes, [1, 5, 6], dim=-1):
        vocoder.decode(pieces_of(states, torch.zeros_like(part)))
        once, heard, _ = vocoder.decode(pieces_of(states, part))
        again, _, _ = vocoder.decode(pieces_of(states, part))
        assert torch.equal(once, again)
        decoded = continue_streams(vocoder, states, part)
        for pcm, row, sound in zip(decoded, once, heard, strict=True):
            assert torch.equal(pcm, row[sound])


def test_look_ahead_of_a_whole_frame_is_refused() -> None:
    config = Qwen3OmniMoeCode2WavConfig(
        hidden_size=32,
        num_hidden_layers=1,
        decoder_dim=32,
        upsampling_ratios=[],
        upsample_rates=[2],
    )
    with pytest.raises(ValueError, match="less than one frame"):
        StreamingVocoder(Qwen3OmniMoeCode2Wav(config), num_slots=1)


def write_checkpoint(folder: Path, model: Qwen3OmniMoeCode2Wav, num_shards: int) -> None:
    config = {"model_type": "qwen3_omni_moe", "code2wav_config": model.config.to_dict()}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {f"code2wav.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors["thinker.lm_head.weight"] = torch.zeros(3)
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::num_shards])
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    weight_map["talker.codec_head.weight"] = "a-shard-that-is-not-here.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("num_shards", [1, 3])
def test_reads_only_the_vocoder_of_a_checkpoint(
    vocoder_model: Qwen3OmniMoeCode2Wav, tmp_path: Path, num_shards: int
) -> None:
    write_checkpoint(tmp_path, vocoder_model, num_shards)
    vocoder = StreamingVocoder.from_checkpoint(
        str(tmp_path), torch.device("cpu"), torch.float32, num_slots=1
    )
    codes = random_codes(1, 8)
    (pcm,) = continue_streams(vocoder, [vocoder.open()], codes)
    assert (pcm - decode_whole(vocoder_model, codes)[0]).abs().max() <= TOLERANCE


def test_random_weights_need_only_the_config(
    vocoder_model: Qwen3OmniMoeCode2Wav, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, vocoder_model, num_shards=1)
    (tmp_path / "model.safetensors").unlink()
    vocoder = StreamingVocoder.from_checkpoint(
        str(tmp_path), torch.device("cpu"), torch.bfloat16, num_slots=1, has_weights=False
    )
    (pcm,) = continue_streams(vocoder, [vocoder.open()], random_codes(1, 2))
    assert pcm.shape == (1920 * 2 - 555,)
    assert pcm.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_memory_is_told_before_it_is_taken(
    dtype: torch.dtype, vocoder_model: Qwen3OmniMoeCode2Wav, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, vocoder_model, num_shards=1)
    told = StreamingVocoder.memory(str(tmp_path), dtype, 5)
    vocoder = StreamingVocoder.from_checkpoint(str(tmp_path), torch.device("cpu"), dtype, 5)
    assert told == {"weights": vocoder.weight_bytes, "slots": 5 * vocoder.slots.bytes_each}
    assert 0 < told["slots"] <= vocoder.slots.rows.nbytes

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import StreamPiece


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_shapes_continue_streams_as_others_do(
    vocoder_model: Qwen3OmniMoeCode2Wav,
) -> None:
    model = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**vocoder_model.config.to_dict()))
    model.load_state_dict(vocoder_model.state_dict())
    vocoder = StreamingVocoder(model.requires_grad_(False).cuda(), num_slots=6)
    for num_rows, num_frames in ((4, 3), (2, 3), (2, 1)):
        vocoder.record(num_rows, num_frames)
    codes = torch.randint(0, 32, (3, 4, 12))
    states = [vocoder.open() for _ in codes]
    parts = []
    for part in torch.split(codes, [1, 3, 3, 5], dim=-1):
        frames = part.transpose(1, 2).int().numpy()
        pieces = [StreamPiece(state, row) for state, row in zip(states, frames, strict=True)]
        blank = vocoder.blank(part.shape[-1])
        vocoder.decode([StreamPiece(state, blank) for state in states])  # nobody goes on from it
        pcm, heard, _ = vocoder.decode(pieces)
        for piece in pieces:
            vocoder.advance(piece)
        parts.append(pcm[:, heard[0]])
    whole = vocoder_model(codes)[:, 0]
    assert (torch.cat(parts, dim=1).cpu() - whole).abs().max() <= 1e-2

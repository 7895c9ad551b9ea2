from pathlib import Path

import numpy as np
import pytest
import torch
from references.qwen3_tts_inputs import STRIDE, codes

from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import StreamPiece


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_shapes_make_the_packages_samples_as_others_do(
    voice_model: Path, recorded: dict[str, torch.Tensor]
) -> None:
    device = torch.device("cuda")
    vocoder = StreamingVocoder.from_checkpoint(str(voice_model), device, torch.float32, 6)
    for num_rows, num_frames in ((4, 3), (2, 3), (2, 1)):
        vocoder.record(num_rows, num_frames)
    slots = [vocoder.open(), vocoder.open()]
    parts = []
    for part in np.split(codes(), [1, 4, 7, 12], axis=1):
        pieces = [StreamPiece(slot, own) for slot, own in zip(slots, part, strict=True)]
        blank = vocoder.blank(part.shape[1])
        vocoder.decode([StreamPiece(slot, blank) for slot in slots])  # nobody goes on from it
        parts.append(vocoder.decode(pieces).pcm)
        for piece in pieces:
            vocoder.advance(piece)
    samples = torch.cat(parts, dim=1).cpu()
    assert (samples[:, ::STRIDE] - recorded["samples"]).abs().max() <= 1e-2

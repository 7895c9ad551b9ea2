"""A vocoder whose decodes are noted, and codes for it."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import Decoded, StreamPiece, to_int16
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.streams import DecodedAudio

Codes = npt.NDArray[np.int32]


class WatchedVocoder(StreamingVocoder):
    """Notes the batches it decodes."""

    def __init__(self, model: Qwen3OmniMoeCode2Wav, num_slots: int) -> None:
        super().__init__(model, num_slots)
        self.batches: list[tuple[int, int]] = []

    def decode(self, pieces: Sequence[StreamPiece[Slot]]) -> Decoded:
        self.batches.append((len(pieces), len(pieces[0].frames)))
        return super().decode(pieces)


def random_codes(num_frames: int, seed: int = 0) -> Codes:
    return np.random.default_rng(seed).integers(0, 32, (num_frames, 4), dtype=np.int32)


@torch.inference_mode()
def whole_decode(model: Qwen3OmniMoeCode2Wav, codes: Codes) -> npt.NDArray[np.int16]:
    return to_int16(model(torch.from_numpy(codes.T[None]).long())[0, 0]).numpy()


def assert_same_sound(pcm: npt.NDArray[np.int16], expected: npt.NDArray[np.int16]) -> None:
    assert pcm.dtype == np.int16
    assert pcm.shape == expected.shape
    assert np.abs(pcm.astype(int) - expected).max(initial=0) <= 1


def run(engine: DecoderEngine[Slot]) -> dict[str, list[DecodedAudio]]:
    answers = defaultdict(list)
    while audios := step(engine):
        for audio in audios:
            answers[audio.request_id].append(audio)
    return answers


def step(engine: DecoderEngine[Slot]) -> list[DecodedAudio]:
    """A step in which nothing fails."""
    answers = engine.step()
    audios = [answer for answer in answers if isinstance(answer, DecodedAudio)]
    assert len(audios) == len(answers)
    return audios


def join(audios: list[DecodedAudio]) -> npt.NDArray[np.int16]:
    return np.concatenate([audio.pcm for audio in audios])

"""Small random models of Qwen2.5-Omni's token2wav with the published one's layers."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniToken2WavConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.token2wav import dit
from omnistage.stages.qwen2_5_omni.token2wav.flow import make_times
from omnistage.stages.qwen2_5_omni.token2wav.flow_schedule import Schedule
from omnistage.stages.qwen2_5_omni.token2wav.token2wav import Token2Wav
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_voices import Speaker
from omnistage.stages.vocoder.decoder import StreamPiece

NUM_CODES = 96
SPEAKERS = ("Chelsie", "Ethan")
DIT = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "emb_dim": 32,
    "num_embeds": 128,
    "enc_emb_dim": 16,
    "enc_dim": 16,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_attention_channels": 16,
    "enc_res2net_scale": 2,
    "enc_se_channels": 16,
    "dropout": 0.0,
}
FEW_LAYERS = {"num_hidden_layers": 5, "look_ahead_layers": [2], "look_backward_layers": [0, 4]}


def make_token2wav(
    coupling: float = 1, dtype: torch.dtype = torch.float32, is_deep: bool = True
) -> Any:
    """Return one of the caller's own, who may move it to a GPU.

    `coupling`: by what the values of layers that look at neighbours are multiplied.
    """
    return deepcopy(_token2wav(coupling, dtype, is_deep))


@cache
def _token2wav(coupling: float, dtype: torch.dtype, is_deep: bool) -> Any:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    config = Qwen2_5OmniToken2WavConfig(
        dit_config=DIT | ({} if is_deep else FEW_LAYERS),
        bigvgan_config={"upsample_initial_channel": 128},
    )
    model: Any = Qwen2_5OmniToken2WavModel(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * parameter[0].numel() ** -0.5)
        elif name.endswith("bias"):
            parameter.copy_(0.1 * noise)
    model.code2wav_bigvgan_model.conv_post.weight.mul_(0.02)  # no sample is clamped
    for layer in model.code2wav_dit_model.transformer_blocks:
        if layer.look_ahead_block or layer.look_backward_block:
            layer.attn.to_v.weight.mul_(coupling)
    return model.to(dtype)


def make_speakers() -> dict[str, dict[str, Any]]:
    """As spk_dict.pt has them."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: {
            "bos_token": 190 + number,
            "cond": torch.randn(1, DIT["enc_emb_dim"], generator=generator),  # type: ignore[call-overload]
            "ref_mel": torch.randn(1, 60, 80, generator=generator),
        }
        for number, name in enumerate(SPEAKERS)
    }


class MelAsSamples:
    """In place of the vocoder: the mel frames themselves, their numbers one after the other."""

    samples_per_frame = 80

    def __call__(self, mel: torch.Tensor) -> torch.Tensor:
        return mel.flatten(1)


def make_decoder(
    schedule: Schedule,
    num_slots: int = 2,
    *,
    coupling: float = 1,
    dtype: torch.dtype = torch.float32,
    is_deep: bool = True,
    make: type[Token2Wav] = Token2Wav,
) -> Token2Wav:
    """With the random model of these; one that is not deep has few evaluations, too."""
    speakers = {name: Speaker(one["cond"], one["ref_mel"]) for name, one in make_speakers().items()}
    model = make_token2wav(coupling, dtype, is_deep)
    with pytest.MonkeyPatch.context() as patch:
        if not is_deep:
            patch.setattr(dit, "make_times", partial(make_times, num_points=3))
        return make(model, speakers, schedule, num_slots)


def random_codes(num_codes: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """As they travel, [n, 1]."""
    return np.random.default_rng(seed).integers(0, NUM_CODES, (num_codes, 1), np.int32)


def asked(seed: int = 0, speaker: str | None = None) -> Request:
    """A request that is spoken."""
    return Request(None, [], seed=seed, speaker=speaker)


def speak(
    decoder: Token2Wav,
    codes: npt.NDArray[np.int32],
    request: Request,
    arrivals: Sequence[int] = (),
    last_is_late: bool = False,
) -> torch.Tensor:
    """All samples of an answer whose codes come in pieces that begin there."""
    stream, sounds = decoder.open(request), []
    parts = np.split(codes, arrivals)
    if last_is_late:
        parts.append(codes[:0])
    for number, part in enumerate(parts):
        piece, is_unfinished = StreamPiece(stream, part, number == len(parts) - 1), True
        while is_unfinished:
            pcm, (heard,), unfinished = decoder.decode([piece])
            decoder.advance(piece)
            sounds.append(pcm[0, heard])
            is_unfinished = bool(unfinished)
    decoder.close(stream)
    return torch.cat(sounds)

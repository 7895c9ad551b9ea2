"""The codes of a sound, as the speech tokenizer of a checkpoint makes them: Mimi's encoder."""

import torch
from torch import nn
from transformers import MimiConfig, MimiModel

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.qwen3_tts.codec_weights import FOLDER
from omnistage.stages.vocoder.checkpoint import read_config, read_part

PREFIX = "encoder."
# The reference's attention has no window: its version of transformers ignores that of the config.
NO_WINDOW = 1 << 30


class SoundCodes(nn.Module):
    """The codes of mono samples at 24 kHz, of the codebooks that the talker speaks with."""

    def __init__(self, config: MimiConfig, num_codebooks: int) -> None:
        super().__init__()
        self.mimi = MimiModel(config)
        # A checkpoint has no weights for the way back.
        self.mimi.upsample = self.mimi.decoder_transformer = self.mimi.decoder = None
        self.num_codebooks = num_codebooks

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """Encodes samples [n] to int32 [frames, codebooks], the last frame filled up with
        silence.
        """
        encoded = self.mimi.encode(sound[None, None], num_quantizers=self.num_codebooks)
        codes: torch.Tensor = encoded.audio_codes
        return codes[0].T.int()


def load_sound_codes(model: str, device: torch.device, *, has_weights: bool = True) -> SoundCodes:
    """The encoder of a checkpoint folder or hub name; without weights, one with dummy weights."""
    settings = read_config(model, FOLDER)
    config = MimiConfig(**{**settings["encoder_config"], "sliding_window": NO_WINDOW})
    encoder = SoundCodes(config, settings["encoder_valid_num_quantizers"])
    if has_weights:
        encoder.mimi.load_state_dict(dict(read_part(model, PREFIX, torch.device("cpu"), FOLDER)))
    else:
        fill_with_dummy_weights(encoder.named_parameters())
    return encoder.float().to(device).train(False).requires_grad_(False)

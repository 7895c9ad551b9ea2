"""How code2wav reads its vocoder's weights again, for its commands."""

from dataclasses import dataclass

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.qwen3_omni.vocoder_weights import empty_vocoder, load_vocoder
from omnistage.stages.vocoder.decoder import Decoder
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.start import DecoderOptions


@dataclass(frozen=True, slots=True)
class Code2WavWeights:
    """Those of a checkpoint, as a stage with these options has them."""

    folder: str
    options: DecoderOptions

    @property
    def are_stored(self) -> bool:
        """Whether they are the checkpoint's, and no dummy weights."""
        return self.options.has_weights

    def model_of(self, decoder: Decoder[Slot]) -> Qwen3OmniMoeCode2Wav:
        """What the stage's vocoder was made of."""
        assert isinstance(decoder, StreamingVocoder)
        return decoder.model

    def read(self, folder: str, device: torch.device, *, are_stored: bool) -> Qwen3OmniMoeCode2Wav:
        """The vocoder of a checkpoint folder or hub name."""
        return load_vocoder(folder, device, self.options.torch_dtype, has_weights=are_stored)

    def decoder(self, model: Qwen3OmniMoeCode2Wav) -> StreamingVocoder:
        """The stage's vocoder."""
        return StreamingVocoder(model, self.options.num_slots)

    def nothing(self) -> StreamingVocoder:
        """Shapes alone, on the meta device."""
        return StreamingVocoder(empty_vocoder(self.folder, self.options.torch_dtype), num_slots=1)

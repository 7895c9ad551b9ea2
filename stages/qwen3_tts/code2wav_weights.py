"""How code2wav reads its vocoder's weights again, for its commands."""

from dataclasses import dataclass

import torch

from omnistage.stages.qwen3_tts.codec_decoder import CodecDecoder
from omnistage.stages.qwen3_tts.codec_weights import empty_codec_decoder, load_codec_decoder
from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
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

    def model_of(self, decoder: Decoder[Slot]) -> CodecDecoder:
        """What the stage's vocoder was made of."""
        assert isinstance(decoder, StreamingVocoder)
        return decoder.model

    def read(self, folder: str, device: torch.device, *, are_stored: bool) -> CodecDecoder:
        """The vocoder of a checkpoint folder or hub name."""
        return load_codec_decoder(folder, device, self.options.torch_dtype, has_weights=are_stored)

    def decoder(self, model: CodecDecoder) -> StreamingVocoder:
        """The stage's vocoder."""
        return StreamingVocoder(model, self.options.num_slots)

    def nothing(self) -> StreamingVocoder:
        """Shapes alone, on the meta device."""
        return StreamingVocoder(
            empty_codec_decoder(self.folder, self.options.torch_dtype), num_slots=1
        )

"""The token2wav stage: Qwen2.5-Omni's flow and vocoder behind what any streaming decoder needs."""

from dataclasses import replace
from functools import partial

from omnistage.stages.qwen2_5_omni.token2wav.token2wav import AnswerStream, Token2Wav
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_options import Token2WavOptions
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_voices import name_of
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_weights import (
    Token2WavWeights,
    load_speakers,
    load_token2wav,
    memory,
)
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.stage import DecoderStage
from omnistage.stages.vocoder.start import DecoderOptions
from omnistage.stages.vocoder.streams import Limits
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts

# The decoder itself cuts what it gets, and bounds what one forward has.
LIMITS = Limits(piece_frames=1 << 20, batch_frames=1 << 30)


class Token2WavStage(DecoderStage):
    """Codes of the talker in, PCM out."""

    def load(self, ports: StagePorts) -> DecoderEngine[AnswerStream]:
        """The checkpoint's token2wav, and its speakers."""
        self._speakers = frozenset(load_speakers(ports.model))
        own = Token2WavOptions.of(ports.options)
        return make_engine(ports.model, ports.name, DecoderOptions(**ports.engine), own)

    def weights(self, ports: StagePorts) -> Token2WavWeights:
        """The checkpoint's, or another's."""
        own = Token2WavOptions.of(ports.options)
        return Token2WavWeights(ports.model, DecoderOptions(**ports.engine), own)

    async def serve(self, opened: Opened) -> None:
        """Refuses a speaker that the checkpoint has not."""
        try:
            name_of(opened.request.speaker, self._speakers)
        except ValueError as error:
            raise RequestError(400, str(error), param="audio.voice") from None
        await super().serve(opened)


def make_engine(
    model: str, stage: str, options: DecoderOptions, own: Token2WavOptions
) -> DecoderEngine[AnswerStream]:
    """Raises DoesNotFit before anything is loaded."""
    device = options.fitting_device(stage, partial(memory, model, own))
    weights = load_token2wav(model, device, options.torch_dtype, has_weights=options.has_weights)
    decoder = Token2Wav(weights, load_speakers(model), own.schedule, options.num_slots)
    return DecoderEngine(decoder, replace(LIMITS, batch_streams=options.max_batch))

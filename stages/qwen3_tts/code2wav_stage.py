"""The code2wav stage: Qwen3-TTS's vocoder behind what any streaming decoder needs."""

from functools import partial

from omnistage.stages.qwen3_tts.code2wav_weights import Code2WavWeights
from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.stage import DecoderStage
from omnistage.stages.vocoder.start import DecoderOptions
from omnistage.stages.worker.stage import StagePorts


class Code2WavStage(DecoderStage):
    """Codec frames of the talker in, PCM out; the frames of a reference sound may go ahead."""

    def load(self, ports: StagePorts) -> DecoderEngine[Slot]:
        """The checkpoint's vocoder."""
        return load_code2wav(ports.model, ports.name, DecoderOptions(**ports.engine))

    def weights(self, ports: StagePorts) -> Code2WavWeights:
        """The checkpoint's, or another's."""
        return Code2WavWeights(ports.model, DecoderOptions(**ports.engine))


def load_code2wav(model: str, stage: str, options: DecoderOptions) -> DecoderEngine[Slot]:
    """Raises DoesNotFit before anything is loaded."""
    device = options.fitting_device(stage, partial(StreamingVocoder.memory, model))
    return DecoderEngine(
        StreamingVocoder.from_checkpoint(
            model,
            device,
            options.torch_dtype,
            options.num_slots,
            has_weights=options.has_weights,
        )
    )

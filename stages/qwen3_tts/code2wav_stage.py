"""The code2wav stage: Qwen3-TTS's vocoder behind what any streaming decoder needs."""

from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
from omnistage.stages.vocoder.checkpoint_vocoder import CheckpointVocoderStage


class Code2WavStage(CheckpointVocoderStage):
    """Codec frames of the talker in, PCM out; the frames of a reference sound may go ahead."""

    vocoder = StreamingVocoder

import pytest

from omnistage.stages.qwen3_tts.speaker_encoder import SpeakerEncoderConfig


def test_the_shortest_sound_has_a_frame_more_than_the_widest_layer_mirrors() -> None:
    assert SpeakerEncoderConfig().min_samples == 256 * (1 + 4)
    assert SpeakerEncoderConfig(enc_kernel_sizes=(9, 3, 3, 3, 1)).min_samples == 256 * (1 + 4)
    assert SpeakerEncoderConfig(enc_kernel_sizes=(5, 5, 5, 5, 1)).min_samples == 256 * (1 + 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample_rate": 16_000}, "of 16000 Hz, not 24000"),
        ({"enc_dilations": (1, 2)}, "differ in number"),
    ],
)
def test_a_config_that_cannot_be_computed_is_refused(
    settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SpeakerEncoderConfig(**settings)  # type: ignore[arg-type]

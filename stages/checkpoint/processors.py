"""Image, audio and video processors, as their config files declare them."""

from collections.abc import Sequence
from dataclasses import dataclass

from omnistage.stage_configs.json_types import Json

MERGE_SIZE = 2
TEMPORAL_PATCH_SIZE = 2
_RATE, _HOP = 16000, 160


@dataclass(frozen=True)
class Processors:
    """`pixels`: fewest and most of an image or frame; `seconds`: the longest stretch of sound."""

    processor_class: str
    patch_size: int
    pixels: tuple[int, int]
    seconds: int
    mean: Sequence[float] = (0.5, 0.5, 0.5)
    deviation: Sequence[float] = (0.5, 0.5, 0.5)

    def image(self) -> Json:
        """preprocessor_config.json of a model that hears nothing."""
        return {
            **self._vision(),
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": self.pixels[0],
            "max_pixels": self.pixels[1],
        }

    def image_and_audio(self) -> Json:
        """preprocessor_config.json: the image processor's and the feature extractor's keys."""
        return {
            **self.image(),
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": 128,
            "sampling_rate": _RATE,
            "hop_length": _HOP,
            "n_fft": 400,
            "chunk_length": self.seconds,
            "n_samples": self.seconds * _RATE,
            "nb_max_frames": self.seconds * _RATE // _HOP,
            "padding_value": 0.0,
            "padding_side": "right",
            "return_attention_mask": True,
            "dither": 0.0,
        }

    def video(self) -> Json:
        """video_preprocessor_config.json."""
        return {
            **self._vision(),
            "video_processor_type": "Qwen2VLVideoProcessor",
            # vLLM hands over frames without the metadata that sampling them would need.
            "do_sample_frames": False,
        }

    def _vision(self) -> Json:
        return {
            "image_mean": list(self.mean),
            "image_std": list(self.deviation),
            "patch_size": self.patch_size,
            "merge_size": MERGE_SIZE,
            "temporal_patch_size": TEMPORAL_PATCH_SIZE,
            "processor_class": self.processor_class,
            "size": {"shortest_edge": self.pixels[0], "longest_edge": self.pixels[1]},
        }

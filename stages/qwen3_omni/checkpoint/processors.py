"""Image, audio and video processors, as their config files declare them.

The tiny checkpoint's limits on pixels and seconds are lower than the real model's.
"""

from typing import Any

PATCH_SIZE = 16
MERGE_SIZE = 2
TEMPORAL_PATCH_SIZE = 2

TINY_PIXELS = (32 * 32, 64 * 32 * 32)
REAL_PIXELS = (3136, 12845056)
TINY_SECONDS, REAL_SECONDS = 30, 300
_RATE, _HOP = 16000, 160
_VISION = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": PATCH_SIZE,
    "merge_size": MERGE_SIZE,
    "temporal_patch_size": TEMPORAL_PATCH_SIZE,
    "processor_class": "Qwen3OmniMoeProcessor",
}


def image_and_audio_config(
    pixels: tuple[int, int] = TINY_PIXELS, seconds: int = TINY_SECONDS
) -> dict[str, Any]:
    """preprocessor_config.json: the image processor's and the feature extractor's keys together.

    `pixels`: fewest and most of an image; `seconds`: the longest stretch of sound.
    """
    return {
        **_VISION,
        "size": {"shortest_edge": pixels[0], "longest_edge": pixels[1]},
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": pixels[0],
        "max_pixels": pixels[1],
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": _RATE,
        "hop_length": _HOP,
        "n_fft": 400,
        "chunk_length": seconds,
        "n_samples": seconds * _RATE,
        "nb_max_frames": seconds * _RATE // _HOP,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": True,
        "dither": 0.0,
    }


def video_config(pixels: tuple[int, int] = TINY_PIXELS) -> dict[str, Any]:
    """video_preprocessor_config.json; `pixels`: fewest and most of a frame."""
    return {
        **_VISION,
        "size": {"shortest_edge": pixels[0], "longest_edge": pixels[1]},
        "video_processor_type": "Qwen2VLVideoProcessor",
        # vLLM hands over frames without the metadata that sampling them would need.
        "do_sample_frames": False,
    }

"""The tiny checkpoint's image, audio and video processors, as their config files declare them."""

from typing import Any

PATCH_SIZE = 16
MERGE_SIZE = 2
TEMPORAL_PATCH_SIZE = 2

_PIXELS = {"shortest_edge": 32 * 32, "longest_edge": 64 * 32 * 32}
_VISION = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": _PIXELS,
    "patch_size": PATCH_SIZE,
    "merge_size": MERGE_SIZE,
    "temporal_patch_size": TEMPORAL_PATCH_SIZE,
    "processor_class": "Qwen3OmniMoeProcessor",
}


def image_and_audio_config() -> dict[str, Any]:
    """preprocessor_config.json: the image processor's and the feature extractor's keys together."""
    return {
        **_VISION,
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": _PIXELS["shortest_edge"],
        "max_pixels": _PIXELS["longest_edge"],
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": True,
        "dither": 0.0,
    }


def video_config() -> dict[str, Any]:
    """video_preprocessor_config.json."""
    return {
        **_VISION,
        "video_processor_type": "Qwen2VLVideoProcessor",
        # vLLM hands over frames without the metadata that sampling them would need.
        "do_sample_frames": False,
    }

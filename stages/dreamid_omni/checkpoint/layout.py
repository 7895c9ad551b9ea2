"""The files of a DreamID-Omni folder, as the authors' program downloads them."""

from pathlib import Path

FUSION = "DreamID_Omni/dreamid_omni.safetensors"
AUDIO_VAE = "MMAudio/ext_weights/v1-16.pth"
VOCODER = "MMAudio/ext_weights/best_netG.pt"
VIDEO_VAE = "Wan2.2-TI2V-5B/Wan2.2_VAE.pth"
TEXT_ENCODER = "Wan2.2-TI2V-5B/models_t5_umt5-xxl-enc-bf16.pth"
TOKENIZER = "Wan2.2-TI2V-5B/google/umt5-xxl"
OTHER_FUSION = "DreamID-Omni/dreamid_omni.safetensors"  # in the folders of vLLM-Omni


def fusion_of(folder: Path) -> Path:
    """Return the file of the denoiser's weights."""
    other = folder / OTHER_FUSION
    return other if other.is_file() else folder / FUSION


def check_files(folder: Path) -> None:
    """Raise ValueError for a folder without one of the files, by its name."""
    for path in (
        fusion_of(folder),
        *(folder / one for one in (AUDIO_VAE, VOCODER, VIDEO_VAE, TEXT_ENCODER)),
    ):
        if not path.is_file():
            raise ValueError(f"{folder} has no file {path.relative_to(folder)}")
    if not (folder / TOKENIZER).is_dir():
        raise ValueError(f"{folder} has no folder {TOKENIZER}")

"""Records what DreamID-Omni's own code makes: dreamid_omni.safetensors.

The checkpoint is a tiny one:

    omnistage tiny dreamid-omni FOLDER

and read in omnistage's own environment (torch 2.13.0, transformers 5.19, Diffusers 0.42.1) with
librosa 0.11.0, open_clip_torch, omegaconf, pandas and pydub beside it, and a clone of
Guoxu1233/DreamID-Omni (commit 9a9f456). With torch 2.14.1 and Pillow 13.0.0
the audio of one scene was 2e-3 away. It runs in the clone's folder; flash attention is replaced by
torch's, and bfloat16 by float32:

    PYTHONPATH=TESTS:CLONE python -m references.dreamid_omni FOLDER
"""

import json
import sys
import tempfile
import types
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from references.dreamid_omni_scenes import NEGATIVE, SCENES, Scene, files_of, hash_of
from safetensors import safe_open
from safetensors.torch import save_file

VOCODER_SIZE, AUDIO_SIZE, VIDEO_SIZE, TEXT_SIZE = 64, 16, 8, 32
Tensors = dict[str, torch.Tensor]

torch.cuda.current_device = lambda: 0  # a default of theirs, which is not used
from dreamid_omni import dreamid_omni_engine  # noqa: E402
from dreamid_omni.modules import fusion, model, t5, vae2_2  # noqa: E402
from dreamid_omni.modules.mmaudio.ext.autoencoder import vae  # noqa: E402
from dreamid_omni.modules.mmaudio.ext.bigvgan import bigvgan  # noqa: E402
from dreamid_omni.modules.mmaudio.features_utils import FeaturesUtils  # noqa: E402


class Float32Torch(types.ModuleType):
    """torch, but what asks for bfloat16 gets float32."""

    bfloat16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_lens: Any = None, **others: Any
) -> torch.Tensor:
    """flash_attention of whole sequences [1, tokens, heads, size]."""
    assert k_lens is None or k_lens.tolist() == [k.shape[1]]
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return made.transpose(1, 2)


fusion.torch = model.torch = Float32Torch("torch")
fusion.flash_attention = model.flash_attention = attend
torch.Tensor.bfloat16 = torch.Tensor.float  # type: ignore[method-assign]


def fusion_of(folder: Path) -> Any:
    """Their model with the tiny checkpoint's sizes."""
    path = folder / "DreamID_Omni/dreamid_omni.safetensors"
    with safe_open(path, "pt") as file:
        head_size = int(file.metadata()["head_size"])
        ffn_size, size = file.get_slice("video_model.blocks.0.ffn.0.weight").get_shape()
    configs = []
    for name in ("video", "audio"):
        config = json.loads(Path(f"dreamid_omni/configs/model/dit/{name}.json").read_text())
        sizes = {"dim": size, "ffn_dim": ffn_size, "freq_dim": TEXT_SIZE, "text_dim": TEXT_SIZE}
        configs.append({**config, **sizes, "num_heads": size // head_size, "num_layers": 2})
    made = fusion.FusionModel(*configs)
    dreamid_omni_engine.load_fusion_checkpoint(made, str(path))
    return made.eval()


def engine_of(folder: Path) -> Any:
    """Their engine, without the sizes that its constructor knows."""
    vae2_2.WanVAE_ = partial(vae2_2.WanVAE_, dec_dim=VIDEO_SIZE)
    vae.VAE_16k = partial(vae.VAE, data_dim=80, embed_dim=20, hidden_dim=AUDIO_SIZE)
    config = OmegaConf.load(bigvgan._bigvgan_vocoder_path)
    config.upsample_initial_channel = VOCODER_SIZE
    bigvgan.OmegaConf = types.SimpleNamespace(load=lambda path: config)
    texts = folder / "Wan2.2-TI2V-5B/models_t5_umt5-xxl-enc-bf16.pth"
    vocabulary = len(torch.load(texts)["token_embedding.weight"])
    sizes = dict.fromkeys(("dim", "dim_attn", "dim_ffn"), TEXT_SIZE)
    t5.umt5_xxl = partial(
        t5.umt5_xxl, vocab_size=vocabulary, **sizes, num_heads=2, encoder_layers=2
    )
    made = object.__new__(dreamid_omni_engine.DreamIDOmniEngine)
    made.device, made.target_dtype, made.cpu_offload = "cpu", torch.float32, False
    made.model = fusion_of(folder)
    made.vae_model_video = vae2_2.Wan2_2_VAE(
        c_dim=VIDEO_SIZE, vae_pth=folder / "Wan2.2-TI2V-5B/Wan2.2_VAE.pth", device="cpu"
    )
    made.vae_model_audio = FeaturesUtils(
        tod_vae_ckpt=folder / "MMAudio/ext_weights/v1-16.pth",
        bigvgan_vocoder_ckpt=folder / "MMAudio/ext_weights/best_netG.pt",
        mode="16k",
    ).eval()
    made.text_model = t5.T5EncoderModel(
        512,
        torch.float32,
        "cpu",
        checkpoint_path=texts,
        tokenizer_path=str(folder / "Wan2.2-TI2V-5B/google/umt5-xxl"),
    )
    made.video_latent_channel, made.audio_latent_channel = 48, 20
    return made


def made_of(engine: Any, scene: Scene, folder: Path) -> Tensors:
    """Frames as bytes and samples of one request."""
    paths: dict[str, str] = {}
    for kind, files, end in zip(("image", "audio"), files_of(scene), ("png", "wav"), strict=True):
        for number, file in enumerate(files):
            path = folder / f"{number}.{end}"
            path.write_bytes(file)
            paths[f"{kind}{number}_path"] = str(path)
    engine.video_latent_length = (scene.num_frames - 1) // 4 + 1
    engine.audio_latent_length = int(scene.num_frames / 24 * 16_000 / 512)
    names = ("video_cfg_scale", "video_ref_cfg_scale", "audio_cfg_scale", "audio_ref_cfg_scale")
    frames, samples, _ = engine.generate(
        scene.prompt,
        **paths,
        video_frame_height_width=scene.size,
        seed=scene.seed,
        sample_steps=scene.num_steps,
        video_negative_prompt=NEGATIVE[0],
        audio_negative_prompt=NEGATIVE[1],
        **dict(zip(names, scene.scales, strict=True)),
    )
    pixels = torch.from_numpy((frames + 1) / 2 * 255).round().to(torch.uint8)
    return {"frames": pixels.permute(1, 2, 3, 0), "samples": torch.from_numpy(samples)}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    engine = engine_of(folder)
    with tempfile.TemporaryDirectory() as media:
        recorded = {
            f"{name}.{key}": one.contiguous()
            for name, scene in SCENES.items()
            for key, one in made_of(engine, scene, Path(media)).items()
        }
    target = Path(__file__).with_suffix(".safetensors")
    save_file(recorded, target, {"checkpoint": hash_of(folder)})


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

"""Records what BAGEL's own code draws and says: bagel.safetensors.

The checkpoint is a tiny one:

    omnistage tiny bagel FOLDER

and read in an environment with a clone of ByteDance-Seed/Bagel (commit 056b5fd), transformers
4.49.0, torch 2.6.0, torchvision, einops and opencv-python-headless; flash attention is replaced by
torch's, and bfloat16 by float32:

    PYTHONPATH=tests:CLONE python -m references.bagel FOLDER
"""

import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
import transformers
from references.bagel_inputs import (
    DRAWINGS,
    LATENT_SIDES,
    MAX_THINK_TOKENS,
    MAX_WORDS,
    TALKS,
    VISION_SIDES,
    Drawing,
    Talk,
    hash_of,
    images_of,
)
from safetensors.torch import load_file, save_file

assert transformers.__version__ == "4.49.0"
VAE = {"scale_factor": 0.3611, "shift_factor": 0.1159, "num_res_blocks": 1, "resolution": 256}
Tensors = dict[str, torch.Tensor]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
) -> torch.Tensor:
    """flash_attn_varlen_func of one sequence; a causal mask is aligned to the end of the keys."""
    mask = None
    if causal:
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    groups = q.shape[1] // k.shape[1]
    k, v = (one.repeat_interleave(groups, 1).transpose(0, 1) for one in (k, v))
    made = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), k, v, mask)
    return made.transpose(0, 1)


flash: Any = types.ModuleType("flash_attn")
flash.flash_attn_varlen_func = attend
flash.__spec__ = ModuleSpec("flash_attn", None)
sys.modules["flash_attn"] = flash

from data.data_utils import add_special_tokens  # noqa: E402
from data.transforms import ImageTransform  # noqa: E402
from inferencer import InterleaveInferencer  # noqa: E402
from modeling.autoencoder import AutoEncoder, AutoEncoderParams  # noqa: E402
from modeling.bagel import (  # noqa: E402
    Bagel,
    BagelConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
    qwen2_navit,
    siglip_navit,
)
from modeling.bagel.modeling_utils import PositionEmbedding  # noqa: E402
from modeling.qwen2 import Qwen2Tokenizer  # noqa: E402


class Float32Torch(types.ModuleType):
    """torch, but what asks for bfloat16 gets float32."""

    bfloat16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


qwen2_navit.torch = siglip_navit.torch = Float32Torch("torch")


def inferencer_of(folder: Path) -> Any:
    """The repository's own, made as its app.py does."""
    sizes = json.loads((folder / "config.json").read_text())
    language = Qwen2Config.from_json_file(folder / "llm_config.json")
    language.qk_norm, language.tie_word_embeddings = True, False
    language.layer_module = "Qwen2MoTDecoderLayer"
    vision = SiglipVisionConfig.from_json_file(folder / "vit_config.json")
    vision.rope = False
    vision.num_hidden_layers -= 1
    channels = {"in_channels": 3, "out_ch": 3, "ch": 32, "ch_mult": [1] * 4}
    params = AutoEncoderParams(**VAE, **channels, **sizes["vae_config"])
    vae = AutoEncoder(params)
    vae.load_state_dict(load_file(folder / "ae.safetensors"))
    config = BagelConfig(
        llm_config=language,
        vit_config=vision,
        vae_config=params,
        vit_max_num_patch_per_side=sizes["vit_max_num_patch_per_side"],
        max_latent_size=sizes["max_latent_size"],
        latent_patch_size=sizes["latent_patch_size"],
    )
    model = Bagel(Qwen2ForCausalLM(language), SiglipVisionModel(vision), config)
    model.vit_model.vision_model.embeddings.convert_conv2d_to_linear(vision)
    model.load_state_dict(load_file(folder / "ema.safetensors"))
    tokenizer, ids, _ = add_special_tokens(Qwen2Tokenizer.from_pretrained(folder))
    (least, most, patch), (narrow, wide, part) = VISION_SIDES, LATENT_SIDES
    transforms = ImageTransform(wide, narrow, part), ImageTransform(most, least, patch)
    return InterleaveInferencer(model.float().eval(), vae.eval(), tokenizer, *transforms, ids)


def drawn(inferencer: Any, drawing: Drawing) -> Tensors:
    """Pixels and the thought's bytes of one request."""
    torch.manual_seed(drawing.seed)
    made = inferencer.interleave_inference(
        [*images_of(drawing), drawing.prompt],
        think=drawing.think,
        max_think_token_n=MAX_THINK_TOKENS,
        cfg_text_scale=drawing.scales[0],
        cfg_img_scale=drawing.scales[1],
        num_timesteps=drawing.num_steps + 1,
        image_shapes=drawing.size,
        **drawing.more,
    )
    thought = made[0].encode() if drawing.think else b""
    pixels = torch.frombuffer(bytearray(made[-1].tobytes()), dtype=torch.uint8)
    return {
        "pixels": pixels.reshape(made[-1].height, made[-1].width, 3),
        "thought": torch.tensor(list(thought), dtype=torch.uint8),
    }


def said(inferencer: Any, talk: Talk) -> torch.Tensor:
    """The bytes of an answer; the start that is given to it counts as a token of its length."""
    (text,) = inferencer.interleave_inference(
        list(talk.texts),
        think=talk.think,
        understanding_output=True,
        max_think_token_n=MAX_WORDS + 1,
    )
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@torch.no_grad()
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    inferencer = inferencer_of(folder)
    recorded = {
        f"{name}.{key}": one.contiguous()
        for name, drawing in DRAWINGS.items()
        for key, one in drawn(inferencer, drawing).items()
    }
    recorded |= {f"{name}.words": said(inferencer, talk) for name, talk in TALKS.items()}
    recorded["table"] = PositionEmbedding(8, 64).pos_embed.data
    target = Path(__file__).with_suffix(".safetensors")
    save_file(recorded, target, {"checkpoint": hash_of(folder)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

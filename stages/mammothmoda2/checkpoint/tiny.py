"""A tiny MammothModa2 in the published layout, with random weights.

It has no tokenizer of images: what makes images of words has none.
"""

import base64
from pathlib import Path

import torch
from accelerate import init_empty_weights
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.files import write_json
from omnistage.stages.checkpoint.processors import Processors
from omnistage.stages.mammothmoda2.checkpoint.weights import PREFIXES, empty_parts
from omnistage.stages.mammothmoda2.model_config import ANSWERS, GENERATION
from omnistage.stages.mammothmoda2.tokens import (
    IMAGE_END,
    IMAGE_MARKS,
    IMAGE_START,
    IMAGE_TOKEN,
    IMAGE_TOKENS,
    TEMPLATE,
    WORDS,
)
from omnistage.stages.mammothmoda2.tokens import MARKS as WORD_MARKS

# An id follows all before it, and not its last alone.
QUERY_GAIN, OUTPUT_GAIN = 2.0, 4.0
NUM_CODES = 64  # of images' parts
FIRST_IMAGE_ID = 288  # behind 256 words, a byte each, and the marks
MARKS = (IMAGE_START, IMAGE_END, IMAGE_TOKEN)
FIRST_CODE = FIRST_IMAGE_ID + len(IMAGE_MARKS) + len(MARKS)
NUM_IMAGE_IDS = FIRST_CODE - FIRST_IMAGE_ID + NUM_CODES
CHAT_TEMPLATE = """\
{%- for message in messages -%}<|im_start|>{{ message.role }}
{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}\
{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% if t2i_generate -%}<|image start|>{{ ar_height }}*{{ ar_width }}<|image token|>{%- endif -%}
{%- endif -%}"""
IDS = {
    "extra_gen_vocab": True,
    "gen_vocab_size": NUM_IMAGE_IDS,
    "gen_vocab_start_index": FIRST_IMAGE_ID,
    "moe_type": "ffn",
}
TEXT: Json = {
    **IDS,
    "model_type": "mammothmoda2_qwen3_vl_text",
    "vocab_size": FIRST_IMAGE_ID,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "rope_scaling": {
        "rope_type": "default",
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
    "attention_bias": False,
    "tie_word_embeddings": False,
}
VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
PROCESSORS = Processors("Qwen3VLProcessor", 16, pixels=(32 * 32, 128 * 128), seconds=0)
WORD_IDS = {mark: 256 + number for number, mark in enumerate(WORD_MARKS)}
SEEN_IDS = {
    "image_token_id": WORD_IDS["<|image_pad|>"],
    "video_token_id": WORD_IDS["<|video_pad|>"],
    "vision_start_token_id": WORD_IDS["<|vision_start|>"],
    "vision_end_token_id": WORD_IDS["<|vision_end|>"],
}
DIT = {
    "patch_size": 2,
    "in_channels": 4,
    "hidden_size": 48,
    "num_layers": 2,
    "num_refiner_layers": 1,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "multiple_of": 16,
    "norm_eps": 1e-5,
    "axes_dim_rope": [4, 4, 4],
    "axes_lens": [1000, 1000, 1000],
    "text_feat_dim": 64,
    "timestep_scale": 1000.0,
}
VAE = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [4, 8, 8, 8],
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 1,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "shift_factor": 0.1159,
    "scaling_factor": 0.3611,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
SAMPLING = {
    "do_sample": False,
    "repetition_penalty": 1.1,
    "eol_token_id": FIRST_IMAGE_ID,
    "visual_token_start_id": FIRST_CODE,
    "visual_token_end_id": FIRST_CODE + NUM_CODES,
}
ANSWERING = {
    "do_sample": False,
    "repetition_penalty": 1.05,
    "eos_token_id": [WORD_IDS["<|im_end|>"], WORD_IDS["<|endoftext|>"]],
    "pad_token_id": WORD_IDS["<|endoftext|>"],
}


def write_tiny_mammothmoda2(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint of this seed into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vision = {"model_type": "mammothmoda2_qwen3_vl", **VISION}
    llm = {"model_type": "mammothmoda2_qwen3_vl", "text_config": TEXT, "vision_config": vision}
    config: Json = {
        "architectures": ["Mammothmoda2Model"],
        "model_type": "mammothmoda2",
        "torch_dtype": "float32",
        "llm_config": {**llm, **IDS, **SEEN_IDS},
        "gen_vae_config": VAE,
        "gen_dit_config": DIT,
        "gen_condition_mode": "text_image",
        "gen_condition_layers": [-2, -3, -4],
        "gen_image_condition_refiner_config": {"num_queries": 16, "num_layers": 1},
        "gen_text_condition_with_answer": False,
    }
    write_json(folder / "config.json", config)
    write_json(folder / GENERATION, SAMPLING)
    write_json(folder / ANSWERS, ANSWERING)
    write_json(folder / "preprocessor_config.json", PROCESSORS.image())
    write_json(folder / "video_preprocessor_config.json", PROCESSORS.video())
    words = (f"{base64.b64encode(bytes([one])).decode()} {one}" for one in range(256))
    (folder / WORDS).write_text("\n".join(words) + "\n", encoding="utf-8")
    codes = (f"<|visual token {number:06d}|>" for number in range(NUM_CODES))
    (folder / IMAGE_TOKENS).write_text("\n".join((*MARKS, *codes)) + "\n", encoding="utf-8")
    (folder / TEMPLATE).write_text(CHAT_TEMPLATE, encoding="utf-8")
    random = torch.Generator().manual_seed(seed)
    weights = _language_weights(random)
    for name, make in empty_parts(config).items():
        for own, like in make().state_dict().items():
            weights[PREFIXES[name] + own] = _noise(own, like.shape, random)
    with init_empty_weights():
        vision_model = Qwen3VLVisionModel(Qwen3VLVisionConfig(**VISION))
    for own, like in vision_model.state_dict().items():
        weights[f"llm_model.model.visual.{own}"] = _noise(own, like.shape, random)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _language_weights(random: torch.Generator) -> dict[str, Tensor]:
    size, inner, head = (TEXT[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = TEXT["num_attention_heads"] * head, TEXT["num_key_value_heads"] * head
    network = {"gate_proj": (inner, size), "up_proj": (inner, size), "down_proj": (size, inner)}
    layer = {
        "self_attn.q_proj": (heads, size),
        "self_attn.k_proj": (kv_heads, size),
        "self_attn.v_proj": (kv_heads, size),
        "self_attn.o_proj": (size, heads),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        **{f"mlp.{name}": shape for name, shape in network.items()},
        **{f"gen_mlp.{name}": shape for name, shape in network.items()},
        "input_layernorm": (size,),
        "post_attention_layernorm": (size,),
    }
    shapes = {
        "model.language_model.embed_tokens": (FIRST_IMAGE_ID, size),
        "model.language_model.gen_embed_tokens": (NUM_IMAGE_IDS, size),
        "model.language_model.norm": (size,),
        "lm_head": (FIRST_IMAGE_ID, size),
        "gen_head": (NUM_IMAGE_IDS, size),
        **{
            f"model.language_model.layers.{number}.{name}": shape
            for number in range(TEXT["num_hidden_layers"])
            for name, shape in layer.items()
        },
    }
    return {
        f"llm_model.{name}.weight": _noise(f"{name}.weight", torch.Size(shape), random)
        for name, shape in shapes.items()
    }


def _noise(name: str, shape: torch.Size, random: torch.Generator) -> Tensor:
    """Return a weight that keeps the size of what goes through it."""
    if len(shape) == 1:
        is_scale = name.endswith("weight")  # of a norm
        noise = torch.rand(shape, generator=random)
        scale = QUERY_GAIN if "q_norm." in name else 1.0
        return scale * (noise + 0.5) if is_scale else 0.1 * (noise - 0.5)
    scale = 1.0 if "embed_tokens" in name else torch.Size(shape[1:]).numel() ** -0.5
    scale *= OUTPUT_GAIN if "o_proj." in name else 1.0
    return scale * torch.randn(shape, generator=random)

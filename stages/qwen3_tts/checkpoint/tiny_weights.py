"""The tiny checkpoints' weights: random, under the names of the real ones."""

import math
from collections.abc import Iterator

import torch

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.qwen3_tts.checkpoint.noise import fill_with_noise
from omnistage.stages.qwen3_tts.checkpoint.tiny_config import CODEC_EOS
from omnistage.stages.qwen3_tts.speaker_encoder import SpeakerEncoder, SpeakerEncoderConfig

Shape = tuple[int, ...]
Weights = dict[str, torch.Tensor]

# Above 1, so that what attention reads still matters after layers of random weights; what is
# written back is kept low, so that the newest frame stays visible in the last layer.
_GAIN, _OUTPUT_GAIN = 2.5, 1.5
# Speech of a talker so wide ends now and then; its length falls quickly as the end's row grows.
_EVEN_SIZE = 35
_TABLES = ("embedding", "lm_head", "codec_head")


def make_weights(config: JsonMap, seed: int) -> Weights:
    """The talker's; in float32."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: _noise(name, torch.randn(shape, generator=generator))
        for name, shape in shapes(config)
    }
    weights["talker.codec_head.weight"][CODEC_EOS] *= config["hidden_size"] / _EVEN_SIZE
    return weights


def make_speaker_encoder(config: JsonMap, seed: int) -> Weights:
    """Makes the encoder of a Base model, by its names in the checkpoint; in float32."""
    encoder = SpeakerEncoder(SpeakerEncoderConfig(**config))
    fill_with_noise(encoder, torch.Generator().manual_seed(seed))
    return {f"speaker_encoder.{name}": one for name, one in encoder.state_dict().items()}


def _noise(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Norms near 1, biases near 0, tables of unit variance; the rest by what it sums over."""
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if any(part in name for part in _TABLES):
        return noise
    gain = _OUTPUT_GAIN if "o_proj" in name or "down_proj" in name else _GAIN
    return noise * (gain / math.sqrt(noise[0].numel()))


def shapes(config: JsonMap) -> Iterator[tuple[str, Shape]]:
    """Every weight's name and shape, in an order that never changes."""
    size, text_size = config["hidden_size"], config["text_hidden_size"]
    yield from _layers("talker.model", config)
    yield "talker.model.codec_embedding.weight", (config["vocab_size"], size)
    yield "talker.model.text_embedding.weight", (config["text_vocab_size"], text_size)
    for name, width in (("linear_fc1", text_size), ("linear_fc2", size)):
        yield f"talker.text_projection.{name}.weight", (width, text_size)
        yield f"talker.text_projection.{name}.bias", (width,)
    yield "talker.codec_head.weight", (config["vocab_size"], size)
    yield from _code_predictor(config["code_predictor_config"], size)


def _code_predictor(config: JsonMap, talker_size: int) -> Iterator[tuple[str, Shape]]:
    size, codes = config["hidden_size"], config["vocab_size"]
    yield from _layers("talker.code_predictor.model", config)
    for group in range(config["num_code_groups"] - 1):
        name = f"talker.code_predictor.model.codec_embedding.{group}.weight"
        yield name, (codes, talker_size)
        yield f"talker.code_predictor.lm_head.{group}.weight", (codes, size)
    if size != talker_size:
        name = "talker.code_predictor.small_to_mtp_projection"
        yield f"{name}.weight", (size, talker_size)
        yield f"{name}.bias", (size,)


def _layers(prefix: str, config: JsonMap) -> Iterator[tuple[str, Shape]]:
    size, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
    layer: dict[str, Shape] = {
        "self_attn.q_proj": (queries, size),
        "self_attn.k_proj": (keys, size),
        "self_attn.v_proj": (keys, size),
        "self_attn.o_proj": (size, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
        "input_layernorm": (size,),
        "post_attention_layernorm": (size,),
    }
    for number in range(config["num_hidden_layers"]):
        for name, shape in layer.items():
            yield f"{prefix}.layers.{number}.{name}.weight", shape
    yield f"{prefix}.norm.weight", (size,)

"""Reading the decoder of Qwen3-TTS's speech tokenizer, and nothing else, from a checkpoint."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeRotaryEmbedding,
)

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.qwen3_tts.codec_decoder import CodecDecoder, codec_config
from omnistage.stages.vocoder.checkpoint import read_config, read_part

FOLDER = "speech_tokenizer"
MODEL_TYPE = "qwen3_tts_tokenizer_12hz"
PREFIX = "decoder."
DUMMY_BOUND = 0.03  # its sound then varies, and is not clipped
SUM, COUNT = "embedding_sum", "cluster_usage"  # of a codebook: a vector is one over the other
MIN_COUNT = 1e-5
UNUSED = ("quantizer.rvq_first.input_proj.weight", "quantizer.rvq_rest.input_proj.weight")

Tensors = dict[str, torch.Tensor]


def load_codec_decoder(
    model: str, device: torch.device, dtype: torch.dtype, *, has_weights: bool = True
) -> CodecDecoder:
    """The decoder of a checkpoint folder or hub name; without weights, one with dummy weights."""
    config = _read_config(model)
    if not has_weights:
        with torch.device(device):
            decoder = _freeze(CodecDecoder(config), dtype)
        fill_with_dummy_weights(decoder.named_parameters(), DUMMY_BOUND)
        return decoder
    with torch.device("meta"):
        decoder = CodecDecoder(config)
    stored = read_part(model, PREFIX, device, FOLDER)
    decoder.load_state_dict(with_codebooks(stored, dtype), assign=True)
    # What no checkpoint holds is still on the meta device.
    decoder.pre_transformer.rotary_emb = Qwen3OmniMoeRotaryEmbedding(config).to(device)
    return _freeze(decoder, dtype)


def empty_codec_decoder(model: str, dtype: torch.dtype) -> CodecDecoder:
    """The decoder of a checkpoint folder or hub name as shapes alone: on the meta device."""
    with torch.device("meta"):
        return _freeze(CodecDecoder(_read_config(model)), dtype)


def with_codebooks(stored: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> Tensors:
    """Stored tensors in a dtype by the decoder's names; codebooks are made of sums and counts."""
    exact = torch.promote_types(dtype, torch.float32)
    tensors: Tensors = {}
    layers: dict[str, dict[int, Tensors]] = defaultdict(lambda: defaultdict(dict))
    for name, one in stored:
        place, _, rest = name.partition(".vq.layers.")
        if rest:
            number, _, kind = rest.split(".")
            layers[place][int(number)][kind] = one.to(exact)
        elif name not in UNUSED:  # those are for encoding
            tensors[name] = one.to(dtype)
    for place, books in layers.items():
        vectors = [_vectors(books[number]) for number in range(len(books))]
        tensors[f"{place}.codebooks"] = torch.stack(vectors).to(dtype)
    return tensors


def _vectors(codebook: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return codebook[SUM] / codebook[COUNT].clamp(min=MIN_COUNT)[:, None]


def _read_config(model: str) -> Any:
    settings = read_config(model, FOLDER)
    if settings.get("model_type") != MODEL_TYPE:
        kind = settings.get("model_type")
        raise ValueError(f"{model} has a speech tokenizer of type {kind}, not {MODEL_TYPE}")
    return codec_config(settings["decoder_config"])


def _freeze(decoder: CodecDecoder, dtype: torch.dtype) -> CodecDecoder:
    return decoder.to(dtype).train(False).requires_grad_(False)

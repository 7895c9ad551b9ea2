"""Published names of weights, by those of the classes that have the same math."""

import re
from collections.abc import Sequence

Names = Sequence[tuple[str, str]]  # patterns and their replacements, one after another

FUSION: Names = (
    (r"^(blocks\.\d+)\.(video|audio)\.", r"\2_model.\1."),
    (r"^(video|audio)\.", r"\1_model."),
    (r"(blocks\.\d+)\.scale_shift_table", r"\1.modulation.modulation"),
    (r"scale_shift_table", "head.modulation"),
    (r"proj_out", "head.head"),
    (r"condition_embedder\.(text|time)_embedder\.linear_1", r"\1_embedding.0"),
    (r"condition_embedder\.(text|time)_embedder\.linear_2", r"\1_embedding.2"),
    (r"condition_embedder\.time_proj", "time_projection.1"),
    (r"norm2", "norm3"),
    (r"(?<=\.)(\w+_fusion)", r"cross_attn.\1"),
    (r"attn1", "self_attn"),
    (r"attn2", "cross_attn"),
    (r"to_([qkv])", r"\1"),
    (r"to_out\.0", "o"),
    (r"ffn\.net\.0\.proj", "ffn.0"),
    (r"ffn\.net\.2", "ffn.2"),
)
TEXT_ENCODER: Names = (
    (r"^shared|^encoder\.embed_tokens", "token_embedding"),
    (r"^encoder\.final_layer_norm", "norm"),
    (r"^encoder\.block", "blocks"),
    (r"layer\.0\.layer_norm", "norm1"),
    (r"layer\.1\.layer_norm", "norm2"),
    (r"layer\.0\.SelfAttention\.relative_attention_bias", "pos_embedding.embedding"),
    (r"layer\.0\.SelfAttention", "attn"),
    (r"layer\.1\.DenseReluDense", "ffn"),
    (r"wi_0", "gate.0"),
    (r"wi_1", "fc1"),
    (r"wo", "fc2"),
)
VIDEO_VAE: Names = (
    (r"^quant_conv", "conv1"),
    (r"^post_quant_conv", "conv2"),
    (r"conv_in", "conv1"),
    (r"conv_out", "head.2"),
    (r"norm_out", "head.0"),
    (r"(resnets\.\d+)\.norm1", r"\1.residual.0"),
    (r"(resnets\.\d+)\.conv1", r"\1.residual.2"),
    (r"(resnets\.\d+)\.norm2", r"\1.residual.3"),
    (r"(resnets\.\d+)\.conv2", r"\1.residual.6"),
    (r"conv_shortcut", "shortcut"),
    (r"mid_block\.attentions\.0", "middle.1"),
    (r"mid_block\.resnets\.0", "middle.0"),
    (r"mid_block\.resnets\.1", "middle.2"),
    (r"down_blocks\.(\d+)\.resnets", r"downsamples.\1.downsamples"),
    (r"up_blocks\.(\d+)\.resnets", r"upsamples.\1.upsamples"),
    # What halves a level is behind its two blocks, what doubles it behind its three.
    (r"down_blocks\.(\d+)\.downsampler", r"downsamples.\1.downsamples.2"),
    (r"up_blocks\.(\d+)\.upsampler", r"upsamples.\1.upsamples.3"),
)


def published(name: str, names: Names) -> str:
    """Return the published name for one of ours."""
    for ours, theirs in names:
        name = re.sub(ours, theirs, name)
    return name

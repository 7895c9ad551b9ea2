"""The names and shapes of a checkpoint's weights, but for the audio VAE."""

from collections.abc import Iterator

from omnistage.stages.voxcpm2.settings import LayersConfig, VoxCPM2Settings

Shape = tuple[int, ...]


def shapes(settings: VoxCPM2Settings) -> Iterator[tuple[str, Shape]]:
    """Every weight's name and shape, in an order that never changes."""
    lm, latent = settings.lm_config, settings.feat_dim
    encoder, dit = settings.encoder_config.layers(lm), settings.dit_config.layers(lm)
    size, local, inner = lm.hidden_size, encoder.hidden_size, dit.hidden_size
    grid = settings.scalar_quantization_latent_dim
    yield "base_lm.embed_tokens.weight", (lm.vocab_size, size)
    yield from _layers("base_lm", lm)
    yield from _layers("residual_lm", settings.residual_config)
    yield "feat_encoder.special_token", (1, 1, 1, local)
    yield from _linear("feat_encoder.in_proj", latent, local)
    yield from _layers("feat_encoder.encoder", encoder)
    estimator = "feat_decoder.estimator"
    for name, (inputs, outputs) in {
        "in_proj": (latent, inner),
        "cond_proj": (latent, inner),
        "out_proj": (inner, latent),
        "time_mlp.linear_1": (inner, inner),
        "time_mlp.linear_2": (inner, inner),
        "delta_time_mlp.linear_1": (inner, inner),
        "delta_time_mlp.linear_2": (inner, inner),
    }.items():
        yield from _linear(f"{estimator}.{name}", inputs, outputs)
    yield from _layers(f"{estimator}.decoder", dit)
    for name, (inputs, outputs) in {
        "fsq_layer.in_proj": (size, grid),
        "fsq_layer.out_proj": (grid, size),
        "enc_to_lm_proj": (local, size),
        "lm_to_dit_proj": (size, inner),
        "res_to_dit_proj": (size, inner),
        "fusion_concat_proj": (2 * size, size),
        "stop_proj": (size, size),
    }.items():
        yield from _linear(name, inputs, outputs)
    yield "stop_head.weight", (2, size)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _layers(prefix: str, config: LayersConfig) -> Iterator[tuple[str, Shape]]:
    size, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    layer: dict[str, Shape] = {
        "self_attn.q_proj": (queries, size),
        "self_attn.k_proj": (keys, size),
        "self_attn.v_proj": (keys, size),
        "self_attn.o_proj": (size, queries),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
        "input_layernorm": (size,),
        "post_attention_layernorm": (size,),
    }
    for number in range(config.num_hidden_layers):
        for name, shape in layer.items():
            yield f"{prefix}.layers.{number}.{name}.weight", shape
    yield f"{prefix}.norm.weight", (size,)

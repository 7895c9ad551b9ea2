"""The settings in a VoxCPM2 checkpoint's config.json, which names no type of transformers'."""

import msgspec

from omnistage.stage_configs.json_types import Json
from omnistage.stages.vocoder.checkpoint import read_config

NAME = "voxcpm2"  # its `architecture`


class LongRope(msgspec.Struct, frozen=True):
    """How rotations are stretched: one factor for each frequency."""

    type: str
    long_factor: tuple[float, ...]
    short_factor: tuple[float, ...]
    original_max_position_embeddings: int


class LayersConfig(msgspec.Struct, frozen=True):
    """A stack of MiniCPM layers."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: LongRope
    vocab_size: int = 0
    kv_channels: int | None = None
    use_mup: bool = True
    scale_emb: float = 1.0
    scale_depth: float = 1.0
    no_rope: bool = False

    @property
    def head_dim(self) -> int:
        """Returns the width of a head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def branch_scale(self) -> float:
        """Returns the factor of what a layer adds to its input."""
        return float(self.scale_depth / self.num_hidden_layers**0.5) if self.use_mup else 1.0

    @property
    def embedding_scale(self) -> float:
        """Returns the factor of embedded ids."""
        return self.scale_emb if self.use_mup else 1.0


class LocalConfig(msgspec.Struct, frozen=True):
    """The layers inside of a patch: those that encode one, or the DiT's that make one."""

    hidden_dim: int = 1024
    ffn_dim: int = 4096
    num_heads: int = 16
    num_layers: int = 4
    kv_channels: int | None = None
    dit_mean_mode: bool = False

    def layers(self, lm: LayersConfig) -> LayersConfig:
        """Returns the whole configuration; what is not said here is the language model's."""
        return msgspec.structs.replace(
            lm,
            hidden_size=self.hidden_dim,
            intermediate_size=self.ffn_dim,
            num_attention_heads=self.num_heads,
            num_hidden_layers=self.num_layers,
            kv_channels=self.kv_channels,
        )


class AudioVaeConfig(msgspec.Struct, frozen=True):
    """The codec of latents: 16 kHz in, 48 kHz out."""

    encoder_dim: int = 128
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = 64
    decoder_dim: int = 2048
    decoder_rates: tuple[int, ...] = (8, 6, 5, 2, 2, 2)
    depthwise: bool = True
    sample_rate: int = 16_000
    out_sample_rate: int = 48_000
    use_noise_block: bool = False
    sr_bin_boundaries: tuple[int, ...] | None = (20_000, 30_000, 40_000)
    cond_type: str = "scale_bias"
    cond_out_layer: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a codec that this family cannot run."""
        unknown = {
            "use_noise_block": self.use_noise_block,
            "cond_out_layer": self.cond_out_layer,
            f"cond_type {self.cond_type!r}": self.cond_type not in CONDITIONS,
        }
        for name, is_set in unknown.items():
            if is_set:
                raise ValueError(f"the audio VAE's {name} is not known here")


CONDITIONS = ("scale_bias", "scale_bias_init")  # two ways to begin a training, one meaning


class VoxCPM2Settings(msgspec.Struct, frozen=True):
    """A checkpoint's config.json, as far as it says what is computed."""

    lm_config: LayersConfig
    encoder_config: LocalConfig
    dit_config: LocalConfig
    patch_size: int = 4
    feat_dim: int = 64
    residual_lm_num_layers: int = 8
    residual_lm_no_rope: bool = False
    scalar_quantization_latent_dim: int = 512
    scalar_quantization_scale: int = 9
    audio_vae_config: AudioVaeConfig = AudioVaeConfig()
    dtype: str = "bfloat16"

    @property
    def residual_config(self) -> LayersConfig:
        """Returns the configuration of the second language model."""
        return msgspec.structs.replace(
            self.lm_config,
            num_hidden_layers=self.residual_lm_num_layers,
            no_rope=self.residual_lm_no_rope,
        )


def settings_of(config: Json) -> VoxCPM2Settings:
    """Read a config.json; raises ValueError for one that this family cannot serve."""
    if config.get("architecture") != NAME:
        raise ValueError(f"architecture {config.get('architecture')!r} is not {NAME!r}")
    known = {name: value for name, value in config.items() if value is not None}
    try:
        return msgspec.convert(known, VoxCPM2Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"config.json: {error}") from None


def load_settings(model: str) -> VoxCPM2Settings:
    """The settings of a checkpoint folder or hub name."""
    return settings_of(read_config(model))

"""A VoxCPM2 checkpoint as vLLM knows it: neither transformers nor vLLM knows its config.json."""

from typing import Any

from transformers import LlamaConfig, PretrainedConfig
from vllm.transformers_utils.config import register_config_parser
from vllm.transformers_utils.config_parser_base import ConfigParserBase

from omnistage.stage_configs.json_types import Json
from omnistage.stages.vocoder.checkpoint import read_config
from omnistage.stages.voxcpm2.settings import NAME, settings_of
from omnistage.stages.voxcpm2.step_schema import NUM_IDS

CONFIG_FORMAT = "omnistage_voxcpm2"
ARCHITECTURE = "OmnistageVoxCPM2Talker"


class VoxCPM2Config(PretrainedConfig):
    """A checkpoint's config.json as vLLM carries it."""

    model_type = NAME


@register_config_parser(CONFIG_FORMAT)
class VoxCPM2ConfigParser(ConfigParserBase):
    """Lets vLLM read a config.json that names no type of transformers'."""

    def parse(
        self,
        model: Any,
        trust_remote_code: bool,
        revision: str | None = None,
        code_revision: str | None = None,
        **kwargs: object,
    ) -> tuple[Json, PretrainedConfig]:
        """Returns the file and its configuration."""
        config = read_config(str(model))
        settings_of(config)
        return config, VoxCPM2Config(settings=config, dtype=config.get("dtype"))


def talker_config(config: Any) -> Any:
    """`hf_overrides`: both language models as one, whose layers follow each other.

    Its vocabulary is what a step says of the speech (step_schema.py).
    """
    if not isinstance(config, VoxCPM2Config):
        return config
    settings = settings_of(config.settings)
    lm = settings.lm_config
    made = LlamaConfig(
        vocab_size=NUM_IDS,
        hidden_size=lm.hidden_size,
        intermediate_size=lm.intermediate_size,
        num_hidden_layers=lm.num_hidden_layers + settings.residual_lm_num_layers,
        num_attention_heads=lm.num_attention_heads,
        num_key_value_heads=lm.num_key_value_heads,
        head_dim=lm.head_dim,
        max_position_embeddings=lm.max_position_embeddings,
        rms_norm_eps=lm.rms_norm_eps,
        tie_word_embeddings=False,
        dtype=settings.dtype,
    )
    made.architectures = [ARCHITECTURE]
    made.voxcpm2 = config.settings
    return made

"""The configuration of a Qwen3-TTS checkpoint; neither transformers nor vLLM knows its type."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig, Qwen3Config

from omnistage.stage_configs.json_types import Json

MODEL_TYPE = "qwen3_tts"
TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"
ARCHITECTURE = "OmnistageQwen3TTSTalker"
BASE, CUSTOM_VOICE, VOICE_DESIGN = "base", "custom_voice", "voice_design"
MODEL_TYPES = (BASE, CUSTOM_VOICE, VOICE_DESIGN)

# Of the talker's configuration, what transformers' dense Qwen3 has under the same names.
_SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "attention_bias",
)


class Qwen3TTSConfig(PretrainedConfig):
    """A checkpoint's config.json; its parts stay the plain values that they are there."""

    model_type = MODEL_TYPE


AutoConfig.register(MODEL_TYPE, Qwen3TTSConfig, exist_ok=True)


def load_config(folder: str) -> Any:
    """The configuration of a model; raises ValueError for one that this family cannot serve."""
    config: Any = AutoConfig.from_pretrained(folder)
    tokenizer_type = getattr(config, "tokenizer_type", None)
    if tokenizer_type != TOKENIZER_TYPE:
        raise ValueError(f"the model speaks for {tokenizer_type!r}; known is {TOKENIZER_TYPE!r}")
    if config.tts_model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise ValueError(f"tts_model_type {config.tts_model_type!r} is unknown; known are {known}")
    return config


def talker_config(config: Any) -> Any:
    """`hf_overrides`: the talker as a dense Qwen3 with our architecture.

    Its rotary embeddings have three axes whose positions are always equal: those of one axis. What
    Qwen3 does not have comes along. vLLM also calls this with an empty configuration, to ask for
    the model type.
    """
    if not isinstance(config, Qwen3TTSConfig):
        return config
    talker: Json = config.talker_config
    if talker.get("use_sliding_window"):
        raise ValueError("the talker knows no use_sliding_window")
    made = Qwen3Config(
        **{name: talker[name] for name in _SAME if name in talker},
        rope_parameters={"rope_type": "default", "rope_theta": talker["rope_theta"]},
        tie_word_embeddings=False,
    )
    made.architectures = [ARCHITECTURE]
    made.text_vocab_size = talker["text_vocab_size"]
    made.text_hidden_size = talker["text_hidden_size"]
    made.num_code_groups = talker["num_code_groups"]
    made.codec_eos_token_id = talker["codec_eos_token_id"]
    made.code_predictor_config = dict(talker["code_predictor_config"])
    made.takes_frames = config.tts_model_type == BASE
    return made

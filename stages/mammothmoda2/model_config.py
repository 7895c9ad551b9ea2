"""The configuration of a MammothModa2 checkpoint; neither transformers nor vLLM knows its type."""

from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, PretrainedConfig, Qwen3Config

from omnistage.stage_configs.json_types import Json

MODEL_TYPE = "mammothmoda2"
BACKBONE = "mammothmoda2_qwen3_vl"
ARCHITECTURE = "OmnistageMammothModa2ImageIds"
GENERATION = "t2i_generation_config.json"  # of image ids
ANSWERS = "und_generation_config.json"  # of words
LAYERS = (-2, -5, -8, -11, -14, -17)  # whose inputs the denoiser reads the mean of
DEFAULT_GUIDANCE = 7.0
# What attention computes with beside a head: the heads' sizes that all of vLLM's kernels know.
HEAD_SIZES = (64, 96, 128, 160, 192, 224, 256)

# Of the text model's configuration, what transformers' dense Qwen3 has under the same names.
_SAME = ("intermediate_size", "num_hidden_layers", "hidden_size", "hidden_act", "rms_norm_eps")


class MammothModa2Config(PretrainedConfig):
    """A checkpoint's config.json; its parts stay the plain values that they are there."""

    model_type = MODEL_TYPE

    def get_text_config(self, *_: object, **__: object) -> Any:
        """Return itself: `llm_config` is no configuration of transformers'."""
        return self


AutoConfig.register(MODEL_TYPE, MammothModa2Config, exist_ok=True)


@dataclass(frozen=True, slots=True)
class ImageIdsConfig:
    """A checkpoint's configuration as vLLM gets it: `hf_overrides`.

    `first_id`: that of the first id of an image's parts; `line_end`, `image_end`: what ends a line
    of them and all. `guidance`: how far ids follow the prompt; 1 is no guidance.
    """

    first_id: int
    line_end: int
    image_end: int
    guidance: float

    def __call__(self, config: Any) -> Any:
        """Return the text model as a dense Qwen3 with our architecture, whose heads are pairs.

        vLLM also calls this with an empty configuration, to ask for the model type. Raises
        ValueError for a backbone that is not served.
        """
        if not isinstance(config, MammothModa2Config):
            return config
        whole, text, _ = backbone_of(config.llm_config)
        head, first = text["head_dim"], whole["gen_vocab_start_index"]
        made = Qwen3Config(
            **{name: text[name] for name in _SAME if name in text},
            vocab_size=first + whole["gen_vocab_size"],
            num_attention_heads=2 * text["num_attention_heads"],
            num_key_value_heads=2 * text["num_key_value_heads"],
            head_dim=next(size for size in HEAD_SIZES if size > head),
            max_position_embeddings=text["max_position_embeddings"],
            rope_parameters={"rope_type": "default", "rope_theta": text["rope_theta"]},
            tie_word_embeddings=False,
            dtype=config.dtype,
        )
        made.architectures = [ARCHITECTURE]
        made.own_head_dim = head
        made.text_vocab_size = text["vocab_size"]
        made.image_vocab_start = first
        made.generation_layers = generation_layers(
            whole.get("moe_type", "ffn"), made.num_hidden_layers
        )
        made.tapped_layers = tapped_layers(
            getattr(config, "gen_condition_layers", None) or LAYERS, made.num_hidden_layers
        )
        made.first_image_id, made.guidance = self.first_id, self.guidance
        made.forced_ids = [self.line_end, self.image_end]
        return made


def backbone_of(whole: Json) -> tuple[Json, Json, Json]:
    """Return a language model's configuration, its text model's, and how that rotates.

    Raises ValueError for a backbone that is not served.
    """
    if whole.get("model_type") != BACKBONE:
        raise ValueError(f"llm_config is a {whole.get('model_type')!r}; served is {BACKBONE!r}")
    text: Json = whole["text_config"]
    rope: Json = text.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type {rope['rope_type']!r} is not served; 'default' is")
    return whole, text, {**rope, "rope_type": "default", "rope_theta": text["rope_theta"]}


def tapped_layers(indexes: Any, num_layers: int) -> list[int]:
    """Return the layers whose inputs are `hidden_states[index]` of transformers.

    Raises ValueError for an index that is no layer's.
    """
    layers = [index % (num_layers + 1) for index in indexes]
    if num_layers in layers or any(not -num_layers <= one + 1 <= num_layers for one in indexes):
        raise ValueError(f"gen_condition_layers {list(indexes)}: each must be a layer's input")
    return layers


def generation_layers(kind: str, num_layers: int) -> list[int]:
    """Return the layers that have a network of their own for images, such as of "ffn-14:28"."""
    name, _, span = kind.partition("-")
    if name not in ("none", "ffn"):
        raise ValueError(f"moe_type {kind!r} is not served; 'none' and 'ffn' are")
    start, _, stop = span.partition(":")
    return list(range(num_layers)[int(start or 0) : int(stop or num_layers)]) * (name == "ffn")

"""Stand-ins for text encoders, tokenizers and processors of any pipeline, without a download."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import transformers
from tokenizers.processors import TemplateProcessing
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    T5GemmaConfig,
    T5GemmaEncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from omnistage.stages.diffusion.checkpoint.parts import (
    CLIP_LENGTH,
    EOS,
    PAD,
    TEXT_SIZE,
    TOKENIZER,
    make_clip,
    make_t5,
    make_tokenizer,
    t5_sizes,
)

# The texts of a chat's messages, one after another.
CHAT = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{{ part.get('text', '') }}{% endfor %}{% endif %}{% endfor %}"
)
SIZES: Mapping[str, Any] = {
    "vocab_size": TOKENIZER.padded_size,
    "hidden_size": TEXT_SIZE,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "pad_token_id": TOKENIZER.id(PAD),
    "bos_token_id": TOKENIZER.id(EOS),
    "eos_token_id": TOKENIZER.id(PAD),
    "projection_dim": TEXT_SIZE,
}
MROPE = {"rope_type": "default", "mrope_section": [4, 6, 6]}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": TEXT_SIZE,
    "fullatt_block_indexes": [0],
}
# Annotations of base classes, and the classes that the real models have.
CONCRETE = {
    "Gemma2PreTrainedModel": "Gemma2Model",
    "GemmaPreTrainedModel": "GemmaModel",
    "PreTrainedModel": "Qwen3Model",
}


def make_text_encoder(name: str) -> Any:
    """Return a text encoder of a class of transformers, with random weights."""
    name = CONCRETE.get(name, name)
    return MAKERS[name]() if name in MAKERS else _made_of_sizes(name)


def _made_of_sizes(name: str) -> Any:
    made = getattr(transformers, name)
    return made(config_of(made)).eval()


def config_of(made: Any, **more: Any) -> Any:
    """Return the configuration of a class with the sizes that it knows."""
    config = made.config_class
    known = inspect.signature(config).parameters
    return config(**{name: value for name, value in SIZES.items() if name in known}, **more)


def _qwen2_5_vl() -> Any:
    text = {**SIZES, "rope_parameters": MROPE}
    made = transformers.Qwen2_5_VLForConditionalGeneration
    return made(Qwen2_5_VLConfig(text_config=text, vision_config=VISION)).eval()


def _qwen2_5_vl_text() -> Any:
    made = transformers.Qwen2_5_VLTextModel
    return made(config_of(made, rope_parameters=MROPE)).eval()


def _bert() -> Any:
    made = transformers.BertModel
    return made(config_of(made)).eval()


def _clip_vision(has_projection: bool) -> Any:
    made = (
        transformers.CLIPVisionModelWithProjection
        if has_projection
        else transformers.CLIPVisionModel
    )
    sizes = {"image_size": 32, "patch_size": 8}
    return made(config_of(made, **sizes)).eval()


def t5_gemma() -> T5GemmaEncoderModel:
    """Return T5Gemma without its decoder."""
    config = T5GemmaConfig(
        encoder=dict(SIZES), decoder=dict(SIZES), is_encoder_decoder=False, **{"dropout_rate": 0}
    )
    return T5GemmaEncoderModel(config).eval()


MAKERS: Mapping[str, Callable[[], Any]] = {
    "BertModel": _bert,
    "CLIPTextModel": make_clip,
    "CLIPTextModelWithProjection": lambda: make_clip(with_projection=True),
    "CLIPVisionModel": lambda: _clip_vision(False),
    "CLIPVisionModelWithProjection": lambda: _clip_vision(True),
    "Qwen2_5_VLForConditionalGeneration": _qwen2_5_vl,
    "Qwen2_5_VLTextModel": _qwen2_5_vl_text,
    "T5EncoderModel": make_t5,
    "UMT5EncoderModel": lambda: UMT5EncoderModel(UMT5Config(**t5_sizes(TEXT_SIZE))).eval(),
}


def can_make(name: str) -> bool:
    """Return whether there are small sizes for a class: those of a model of models are not here."""
    name = CONCRETE.get(name, name)
    config = getattr(getattr(transformers, name), "config_class", None)
    return name in MAKERS or bool(config and not config.sub_configs)


def make_any_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer in place of a class of transformers: a token a byte, and an end."""
    own = copy.deepcopy(TOKENIZER)
    made = make_tokenizer(CLIP_LENGTH if "CLIP" in name else 512, own)
    made.chat_template = CHAT
    if "CLIP" not in name:
        ends = TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, TOKENIZER.id(EOS))])
        made.backend_tokenizer.post_processor = ends
    return made


class TextProcessor:
    """A processor of texts and images of which texts alone are read."""

    def __init__(self) -> None:
        self.tokenizer = make_any_tokenizer("")

    def __call__(self, text: Any, images: Any = None, videos: Any = None, **options: Any) -> Any:
        """Return the tokens of texts."""
        return self.tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def make_processor() -> TextProcessor:
    return TextProcessor()


def make_image_processor() -> Any:
    """Return CLIP's image processor for small images."""
    side = {"height": 32, "width": 32}
    return transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)

"""A tiny GLM-Image in the pipeline's own layout, with random weights."""

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    GlmImagePipeline,
    GlmImageTransformer2DModel,
)
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    ByT5Tokenizer,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    GlmImageImageProcessor,
    GlmImageProcessor,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from omnistage.stages.checkpoint.tokenizer import byte_characters

NUM_CODES = 64  # of the codebook: the first ids of the vocabulary, then the marks of an image
IMAGE_START, IMAGE_END = NUM_CODES, NUM_CODES + 1
FIRST_BYTE = IMAGE_END + 1
IMAGE = FIRST_BYTE + 256  # what stands for an id of an image to edit
TAGS = {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
PAD, ROLES = "<|endoftext|>", ("<|user|>", "<|assistant|>")
VOCABULARY = 384
SIZES = {"shortest_edge": 32**2, "longest_edge": 2048**2}  # pixels of an image to edit
TEMPLATE = """\
{%- for message in messages -%}<|{{ message.role }}|>
{% for part in message.content -%}
{%- if part.type == 'image' -%}<|dit_token_64|><|image|><|dit_token_65|>
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endfor -%}"""


def write_tiny_glm_image(folder: Path, seed: int = 0) -> None:
    """Write the pipeline's folder."""
    make_tiny_glm_image(seed).save_pretrained(folder)


def make_tiny_glm_image(seed: int = 0) -> GlmImagePipeline:
    """The pipeline with the real one's parts, each as small as it can be."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GlmImagePipeline(
            tokenizer=ByT5Tokenizer(),
            processor=make_processor(),
            text_encoder=_text_encoder(),
            vision_language_encoder=_prior(),
            vae=_vae(),
            transformer=_transformer(),
            scheduler=FlowMatchEulerDiscreteScheduler(),
        )


def make_processor() -> GlmImageProcessor:
    """A token a byte behind the image's ids, and the tags of sizes."""
    codes = {f"<|dit_token_{number}|>": number for number in range(FIRST_BYTE)}
    bytes_ = {character: FIRST_BYTE + byte for byte, character in byte_characters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=codes | bytes_, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = (*codes, *TAGS.values(), PAD, *ROLES)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in specials]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=f"<|dit_token_{IMAGE_START}|>",
        eos_token=f"<|dit_token_{IMAGE_END}|>",
        pad_token=PAD,
        extra_special_tokens=TAGS,
        padding_side="left",
    )
    images = GlmImageImageProcessor(patch_size=16, temporal_patch_size=1, merge_size=1, size=SIZES)
    return GlmImageProcessor(images, fast, chat_template=TEMPLATE)


def _prior() -> GlmImageForConditionalGeneration:
    """The autoregressive half.

    A trained one does not end an image early; this one does not because its generation
    configuration forbids the marks.
    """
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 3, 3],
    }
    config = GlmImageConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "vision_vocab_size": NUM_CODES + 64,
            "hidden_size": 64,  # two heads of 32: vLLM's attention on a CPU knows none smaller
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 8192,
            "pad_token_id": VOCABULARY - 1,
            "eos_token_id": IMAGE_END,
            "rope_parameters": rope,
        },
        vision_config={"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64},
        vq_config={"embed_dim": 32, "num_embeddings": NUM_CODES, "latent_channels": 32},
        image_token_id=IMAGE,
        image_start_token_id=IMAGE_START,
        image_end_token_id=IMAGE_END,
    )
    model = GlmImageForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
        _let_ids_differ(model.model.language_model)
    model.generation_config.update(
        do_sample=True,
        temperature=0.9,
        top_p=0.75,
        top_k=0,
        eos_token_id=IMAGE_END,
        suppress_tokens=list(range(NUM_CODES, NUM_CODES + 64)),
    )
    return model


def _let_ids_differ(model: torch.nn.Module) -> None:
    """Scale what an id owes to its place: as they are made, one id follows another for ever."""
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            parameter.normal_(0, 0.1)
        elif "q_proj.weight" in name or "k_proj.weight" in name:
            parameter.mul_(6)


def _text_encoder() -> T5EncoderModel:
    sizes = {"vocab_size": 384, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2}
    return T5EncoderModel(T5Config(**sizes, num_heads=4)).eval()


def _vae() -> AutoencoderKL:
    num_channels = 4
    return AutoencoderKL(
        block_out_channels=(4, 8, 8, 8),
        layers_per_block=1,
        latent_channels=num_channels,
        norm_num_groups=1,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latents_mean=[0.0] * num_channels,
        latents_std=[1.0] * num_channels,
    ).eval()


def _transformer() -> GlmImageTransformer2DModel:
    return GlmImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        text_embed_dim=32,
        time_embed_dim=16,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=NUM_CODES,
    ).eval()

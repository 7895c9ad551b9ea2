"""Records what MammothModa2's own code makes of a tiny checkpoint: mammothmoda2.safetensors.

The code is that of github.com/bytedance/mammothmoda (ba41c0b), folder mamoda2, with transformers
4.57 and Diffusers 0.35, on a CPU: flash attention is replaced by plain attention, and the tokenizer
of images, which images of words need not, by nothing.

    omnistage tiny mammothmoda2 FOLDER
    PYTHONPATH=tests:CHECKOUT/mamoda2 python -m references.mammothmoda2 FOLDER

Its ids are the likeliest, so that none depend on a generator; the denoiser's noise is torch's. Of
answers ids of images are left out, which trained weights make where they draw alone.
"""

import importlib.machinery
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers.modeling_flash_attention_utils as flash
from references.mammothmoda2_drawings import (
    DRAWINGS,
    GUIDANCE,
    ID_SIDE,
    QUESTIONS,
    STEPS,
    Drawing,
    Question,
    checkpoint_hash,
)
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **told: Any
) -> torch.Tensor:
    """Attention of sequences that stand behind each other: [tokens, heads, size]."""
    heads = [one.transpose(0, 1)[None] for one in (queries, keys, values)]
    found = []
    for start, end in pairwise(told["cu_seqlens_q"].tolist()):
        q, k, v = (one[:, :, start:end] for one in heads)
        found.append(scaled_dot_product_attention(q, k, v, scale=told["softmax_scale"]))
    return torch.cat(found, dim=2)[0].transpose(0, 1)


def padded(tokens: torch.Tensor, places: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Put tokens [n, …] where they were in [batch, length, …]."""
    whole = tokens.new_zeros(batch * length, *tokens.shape[1:])
    whole[places] = tokens
    return whole.view(batch, length, *tokens.shape[1:])


def stand_in(name: str, **content: Any) -> None:
    """Let a module be imported that is not installed."""
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(content)
    sys.modules[name] = module


stand_in("flash_attn")
stand_in("flash_attn.bert_padding", index_first_axis=lambda tokens, places: tokens[places])
flash._lazy_imports = lambda *_: (None, attend, padded, None)
stand_in(
    "mammothmoda2.model.mammothmoda2_visual_tokenizers",
    get_mammothmoda2_visual_tokenizer=lambda _: None,
    create_image_prompt_batch=None,
)

from mammothmoda2.model import DEFAULT_NEGATIVE_PROMPT, Mammothmoda2Model  # noqa: E402
from mammothmoda2.model.mammothmoda2_qwen3_vl import (  # noqa: E402
    tokenization_mammothmoda2_qwen3_vl as tokens,
)
from mammothmoda2.model.processing_mammothmoda2 import Mammothmoda2Processor  # noqa: E402
from mammothmoda2.utils import decode_diffusion_image  # noqa: E402
from transformers import (  # noqa: E402
    GenerationConfig,
    Qwen2VLImageProcessorFast,
    Qwen3VLVideoProcessor,
)

SYSTEM = "You are a helpful image generator."
NUM_WORDS, FIRST_IMAGE_ID, NUM_MARKS = 256, 288, 26


def tokenizer_of(folder: Path) -> Any:
    """Return the code's own tokenizer, with as many words as the tiny checkpoint has."""
    unused = FIRST_IMAGE_ID - NUM_WORDS - NUM_MARKS
    tokens.SPECIAL_START_ID = NUM_WORDS
    tokens.EXTRAS = tokens.EXTRAS[:unused] + tokens.EXTRAS[-5:]
    tokenizer = tokens.MammothUTokenizer(
        str(folder / "mammothu.tiktoken"), str(folder / "mammothu_vision_tokens.txt")
    )
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text("utf-8")
    return tokenizer


def ids_of(tokenizer: Any, messages: list[tuple[str, str]], **told: Any) -> torch.Tensor:
    """Return a conversation's ids [1, n]."""
    conversation = [
        {"role": role, "content": [{"type": "text", "text": text}]} for role, text in messages
    ]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, **told)
    return torch.tensor([tokenizer(text).input_ids])


def recorded(model: Any, tokenizer: Any, drawing: Drawing) -> dict[str, torch.Tensor]:
    """Return the ids and the image of a drawing."""
    width, height = drawing.size
    rows, columns = height // ID_SIDE, width // ID_SIDE
    told = {"t2i_generate": True, "ar_height": rows, "ar_width": columns}
    messages = [("system", SYSTEM), ("user", drawing.prompt)]
    ids = ids_of(tokenizer, messages, add_generation_prompt=True, **told)
    made, mask = model.generate(
        input_ids=ids.repeat(2, 1),
        attention_mask=torch.ones_like(ids).repeat(2, 1),
        ar_height=rows,
        ar_width=columns,
        cfg_scale=GUIDANCE,
        do_sample=False,
    )
    words = drawing.arguments.get("negative_prompt", DEFAULT_NEGATIVE_PROMPT)
    negative = ids_of(tokenizer, [("system", SYSTEM), ("user", words)])
    torch.manual_seed(drawing.seed)
    with tempfile.TemporaryDirectory() as folder:
        (answer,) = decode_diffusion_image(
            ids,
            made,
            mask.bool(),
            negative,
            torch.ones_like(negative).bool(),
            model,
            tokenizer,
            folder,
            text_guidance_scale=drawing.arguments.get("guidance_scale", 9.0),
            num_inference_steps=STEPS,
            height=height,
            width=width,
        )
    return {
        f"{drawing.prompt}/prompt": ids[0],
        f"{drawing.prompt}/ids": made[0, ids.shape[1] :].clone(),
        f"{drawing.prompt}/image": torch.from_numpy(np.array(answer["decoded_img"])),
    }


def answered(model: Any, processor: Any, question: Question) -> torch.Tensor:
    """Return the ids of an answer."""
    images = question.images
    content = [*({"type": "image"} for _ in images), {"type": "text", "text": question.text}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    inputs = processor(text=[text], images=images or None, t2i_generate=False, return_tensors="pt")
    made = model.generate(
        **inputs,
        max_new_tokens=question.num_tokens,
        suppress_tokens=list(range(FIRST_IMAGE_ID, model.llm_model.full_vocab_size)),
    )
    answer: torch.Tensor = made[0, inputs.input_ids.shape[1] :].clone()
    return answer


def main() -> None:
    """Record all drawings and answers."""
    folder = Path(sys.argv[1])
    model = Mammothmoda2Model.from_pretrained(folder, t2i_generate=True).float().eval()
    tokenizer = tokenizer_of(folder)
    kept: dict[str, torch.Tensor] = {}
    for drawing in DRAWINGS:
        kept |= recorded(model, tokenizer, drawing)
    model.t2i_generate = False
    model.generation_config = GenerationConfig.from_pretrained(
        folder, config_file_name=model.generation_config_file_name
    )
    processor = Mammothmoda2Processor(
        Qwen2VLImageProcessorFast.from_pretrained(folder),
        tokenizer,
        Qwen3VLVideoProcessor.from_pretrained(folder),
        chat_template=tokenizer.chat_template,
    )
    for question in QUESTIONS:
        kept[f"{question.name}/answer"] = answered(model, processor, question)
    target = Path(__file__).with_suffix(".safetensors")
    save_file(kept, target, {"checkpoint": checkpoint_hash(folder)})


if __name__ == "__main__":
    main()

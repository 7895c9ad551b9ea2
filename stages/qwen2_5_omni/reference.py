"""transformers' own Qwen2.5-Omni, which `omnistage verify` compares answers with."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoProcessor, Qwen2_5OmniForConditionalGeneration

from omnistage.stages.messages.to_reference import AskedQuestion, Findings, Found, ReferenceJob
from omnistage.stages.reference.forced import Forced, part_of
from omnistage.stages.reference.omni import (
    device_name,
    inputs_of,
    outcome_of,
    speaker_of,
    text_found,
)

# Of a model whose talker has been given pixels generate() makes an error: they are the thinker's.
THINKERS_ALONE = ("pixel_values", "pixel_values_videos")


def load(model: str, dtype: str | torch.dtype) -> Any:
    """Returns a checkpoint in transformers.

    Its token2wav is on the CPU, in float32: the noise that sound begins with is drawn there.
    """
    made = Qwen2_5OmniForConditionalGeneration.from_pretrained(model, dtype=dtype).eval()
    made.thinker.to(device_name())
    made.talker.to(device_name())
    made.token2wav.float()
    restore_mask(made.talker)
    return made


def restore_mask(talker: Any) -> None:
    """Lets the talker see a mask of ones where `generate` has dropped it.

    Without one transformers 5.18 and later leave out its codec_pad, codec_bos and M-RoPE, which all
    of 4.57 have.
    """
    forward: Callable[..., Any] = talker.forward

    @functools.wraps(forward)  # generate looks at the signature
    def with_mask(
        input_ids: Any = None,
        attention_mask: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        **more: Any,
    ) -> Any:
        given = input_ids if inputs_embeds is None else inputs_embeds
        batch, length = given.shape[:2]
        if attention_mask is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            shape = batch, past + length
            attention_mask = torch.ones(shape, dtype=torch.long, device=given.device)
        return forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            **more,
        )

    talker.forward = with_mask


def for_generate(inputs: Mapping[str, object]) -> dict[str, object]:
    """Returns the processor's tensors, named so that `generate` gives pixels to the thinker."""
    return {
        f"thinker_{name}" if name in THINKERS_ALONE else name: value
        for name, value in inputs.items()
    }


def end_ids(model: Any) -> list[int]:
    """Returns the codes that end a talker's answer."""
    config = model.config.talker_config
    return [config.tts_codec_pad_token_id, config.tts_codec_end_token_id]


@torch.no_grad()
def verify(job: ReferenceJob) -> Findings:
    """Returns what `generate` says of each answer, given the choices that were made for it."""
    processor = AutoProcessor.from_pretrained(job.model)
    model = load(job.model, job.dtype)
    return outcome_of([_found(model, processor, asked) for asked in job.asked], model.thinker)


def _found(model: Any, processor: Any, asked: AskedQuestion) -> Found:
    inputs = inputs_of(processor, asked, model.thinker.dtype)
    eos = model.generation_config.eos_token_id
    if not asked.frames:
        return text_found(model.thinker, inputs, asked, eos)
    codes = [code for (code,) in asked.frames]
    text, spoken = Forced(asked.tokens), Forced([*codes, end_ids(model)])
    decode = model.token2wav.forward

    def seeded(*given: torch.Tensor, **options: Any) -> Any:
        torch.manual_seed(asked.fields["seed"])
        code, *more = (one.cpu() for one in given)
        options = {name: on_host(one) for name, one in options.items()}
        return decode(code, *map(on_host, more), **options)

    model.token2wav.forward = seeded
    try:
        _, pcm = model.generate(
            **for_generate(inputs),
            speaker=speaker_of(model.speaker_map, asked.voice),
            thinker_max_new_tokens=len(asked.tokens),
            thinker_do_sample=False,
            thinker_repetition_penalty=1.0,
            thinker_eos_token_id=eos,
            thinker_logits_processor=[text],
            talker_do_sample=False,
            talker_max_new_tokens=len(codes) + asked.has_ended,
            talker_eos_token_id=end_ids(model),
            talker_logits_processor=[spoken],
        )
    finally:
        model.token2wav.forward = decode
    chosen = part_of(spoken.choices, 0, len(codes) + asked.has_ended)
    return Found(text.choices, chosen, pcm.float().cpu().numpy().tobytes())


def on_host(given: Any) -> Any:
    """Returns a tensor of floats in float32 on the CPU; anything else as it is."""
    is_float = isinstance(given, torch.Tensor) and given.is_floating_point()
    return given.float().cpu() if is_float else given

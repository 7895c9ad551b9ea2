"""transformers' own Qwen3-Omni, which `omnistage verify` compares answers with."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.messages.to_reference import (
    AskedQuestion,
    Choices,
    Findings,
    Found,
    ReferenceJob,
)
from omnistage.stages.reference.forced import Forced, joined, part_of
from omnistage.stages.reference.omni import (
    inputs_of,
    outcome_of,
    speaker_of,
    text_found,
)


def load(model: str, dtype: str | torch.dtype, device_map: str) -> Any:
    """Returns a checkpoint in transformers, on one device or, with auto, on all that it needs."""
    made = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        model, dtype=dtype, device_map=device_map
    ).eval()
    if made.has_talker and not hasattr(made.talker.config, "audio_config"):
        # What it lacks itself, for audio and an image in one question.
        made.talker.config.audio_config = made.config.thinker_config.audio_config
    return made


@torch.no_grad()
def verify(job: ReferenceJob) -> Findings:
    """Returns what `generate` says of each answer, given the choices that were made for it."""
    processor = AutoProcessor.from_pretrained(job.model)
    model = load(job.model, job.dtype, "auto" if torch.cuda.is_available() else "cpu")
    return outcome_of([_found(model, processor, asked) for asked in job.asked], model)


def _found(model: Any, processor: Any, asked: AskedQuestion) -> Found:
    inputs = inputs_of(processor, asked, model.dtype)
    eos = model.generation_config.eos_token_id
    if not asked.frames:
        return text_found(model.thinker, inputs, asked, eos)
    text = Forced(asked.tokens)
    # n frames are n + 1 tokens: the last is the end of speech, or was cut off.
    end = model.config.talker_config.codec_eos_token_id
    first = Forced([*(frame[0] for frame in asked.frames), end])
    rest = [Forced(frame[1:]) for frame in asked.frames]
    predictor = model.talker.code_predictor
    generate, left = predictor.generate, iter(rest)

    def forced(**options: Any) -> Any:
        options |= {"do_sample": False, "logits_processor": [next(left)]}
        return generate(**{n: one for n, one in options.items() if n not in ("top_k", "top_p")})

    predictor.generate = forced
    try:
        model.generate(
            **inputs,
            speaker=speaker_of(model.config.talker_config.speaker_id, asked.voice),
            thinker_max_new_tokens=len(asked.tokens),
            thinker_do_sample=False,
            thinker_repetition_penalty=1.0,
            thinker_eos_token_id=eos,
            thinker_logits_processor=[text],
            talker_do_sample=False,
            talker_max_new_tokens=len(asked.frames) + 1,
            talker_logits_processor=[first],
        )
    finally:
        predictor.generate = generate
    codes = torch.tensor(asked.frames, device=model.code2wav.device).T[None]
    pcm = model.code2wav(codes)[0, 0].float().cpu().numpy()
    return Found(text.choices, _in_order(first.choices, rest, asked.has_ended), pcm.tobytes())


def _in_order(first: Choices, rest: Sequence[Forced], has_ended: bool) -> Choices:
    """Returns the choices of frame after frame, and that of the end if there was one."""
    num = len(rest)
    parts = [(part_of(first, n, n + 1), one.choices) for n, one in enumerate(rest)]
    end = [part_of(first, num, num + has_ended)]
    return joined([*(choices for pair in parts for choices in pair), *end])

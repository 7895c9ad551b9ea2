"""transformers' Qwen2.5-Omni as the oracle: rows, text, codes and waveform of one question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.api.prompts import Question, plain
from transformers import AutoProcessor

from omnistage.stages.qwen2_5_omni.reference import end_ids, for_generate, load
from omnistage.stages.reference.forced import Forced


@dataclass(frozen=True)
class Answer:
    """Greedy text, codes [n], waveform float32 [480 n]."""

    text: str
    codes: npt.NDArray[np.int64]
    pcm: npt.NDArray[np.float32]


@dataclass(frozen=True)
class ThinkerRun:
    """What the thinker made: prompt and new ids, and a row for each position that was fed."""

    prompt: list[int]
    tokens: list[int]
    rows: torch.Tensor


def rows_of(model: Any, made: Any) -> torch.Tensor:
    """What the talker gets of a thinker's run: last hidden states and embeddings, not of media."""
    hidden = torch.cat([step[-1] for step in made.hidden_states], dim=1)[0]
    fed = made.sequences[0, : len(hidden)]
    config = model.config.thinker_config
    ids = (config.audio_token_index, config.image_token_index, config.video_token_index)
    is_medium = torch.isin(fed, torch.tensor(ids))
    embedded = model.thinker.get_input_embeddings()(fed)
    rows: torch.Tensor = hidden + embedded.masked_fill(is_medium[:, None], 0)
    return rows


def is_heard(question: Question) -> bool:
    """Whether its videos are."""
    return bool(question.options.get("use_audio_in_video"))


class Qwen2_5Reference:
    """A checkpoint in transformers, float32."""

    def __init__(self, folder: str) -> None:
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.model: Any = load(folder, torch.float32)
        self._eos = self.model.generation_config.eos_token_id
        self.end_ids = end_ids(self.model)

    def inputs(self, question: Question) -> Any:
        """Tensors of the processor."""
        prompt = self.processor.apply_chat_template(
            question.turns, add_generation_prompt=True, tokenize=False
        )
        media = {**question.media, **question.options}
        return self.processor(text=prompt, return_tensors="pt", **media)

    @torch.no_grad()
    def thinker(self, question: Question, num_tokens: int, **more: Any) -> ThinkerRun:
        """Greedy, to its end or so many tokens."""
        inputs = self.inputs(question)
        prompt = inputs["input_ids"]
        made = self.model.thinker.generate(
            **inputs,
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=self._eos,
            output_hidden_states=True,
            return_dict_in_generate=True,
            use_audio_in_video=is_heard(question),
            **more,
        )
        new = made.sequences[0, prompt.shape[1] :]
        return ThinkerRun(prompt[0].tolist(), new.tolist(), rows_of(self.model, made))

    def speech(
        self, text: str, instructions: str, max_codes: int, speaker: str, seed: int = 0
    ) -> Answer:
        """The answer of a thinker that is made to say this text, to a user who says how."""
        said = self.processor.tokenizer.encode(text, add_special_tokens=False)
        question = plain("given", ("user", instructions))
        more = {"thinker_logits_processor": [self._forced(said)]}
        return self.answer(question, len(said) + 1, max_codes, speaker, seed, **more)

    def given(self, text: str, instructions: str) -> ThinkerRun:
        """The thinker's part of it."""
        said = self.processor.tokenizer.encode(text, add_special_tokens=False)
        question = plain("given", ("user", instructions))
        forced = self._forced(said)
        return self.thinker(question, len(said) + 1, logits_processor=[forced])

    def _forced(self, said: Sequence[int]) -> Forced:
        return Forced([*said, self._eos[0]])

    @torch.no_grad()
    def answer(
        self,
        question: Question,
        max_tokens: int,
        max_codes: int,
        speaker: str = "Chelsie",
        seed: int = 0,
        **more: Any,
    ) -> Answer:
        """One greedy answer; `seed` is that of the noise that its sound begins with."""
        inputs = self.inputs(question)
        kept: list[torch.Tensor] = []
        decode = self.model.token2wav.forward

        def keep(code: torch.Tensor, *args: Any, **options: Any) -> Any:
            kept.append(code[0])
            torch.manual_seed(seed)
            return decode(code, *args, **options)

        self.model.token2wav.forward = keep
        try:
            sequences, pcm = self.model.generate(
                **for_generate(inputs),
                speaker=speaker,
                use_audio_in_video=is_heard(question),
                thinker_max_new_tokens=max_tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=self._eos,
                talker_do_sample=False,
                talker_max_new_tokens=max_codes,
                talker_eos_token_id=self.end_ids,
                **more,
            )
        finally:
            self.model.token2wav.forward = decode
        new = sequences[0, inputs["input_ids"].shape[1] :]
        text = self.processor.tokenizer.decode(new, skip_special_tokens=True)
        return Answer(text, kept[0].numpy(), pcm.float().numpy())

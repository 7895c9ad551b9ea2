"""transformers' own generate as the oracle: text, codes and waveform of one question."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.api.prompts import Question, plain
from transformers import AutoProcessor

from omnistage.stages.qwen3_omni.reference import load
from omnistage.stages.reference.forced import Forced


@dataclass(frozen=True)
class Answer:
    """Greedy text, codes [frames, codebooks], waveform float32 [samples]."""

    text: str
    codes: npt.NDArray[np.int64]
    pcm: npt.NDArray[np.float32]


class Reference:
    """A checkpoint in transformers, float32."""

    def __init__(self, folder: str, device: str = "cpu") -> None:
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.model: Any = load(folder, torch.float32, device)
        self.spoken: list[int] = []  # tokens that the last answer's talker was given
        self._eos = self.model.generation_config.eos_token_id
        self._known: dict[tuple[int, int, int, str], tuple[Question, Answer, list[int]]] = {}

    def inputs(self, question: Question, **options: Any) -> Any:
        """Tensors of the processor, with its options."""
        prompt = self.processor.apply_chat_template(
            question.turns, add_generation_prompt=True, tokenize=False
        )
        inputs = self.processor(
            text=prompt, return_tensors="pt", **{**question.media, **question.options, **options}
        )
        return inputs.to(self.model.device)

    def speech(self, text: str, instructions: str, max_frames: int, speaker: str) -> Answer:
        """The answer of a thinker that is made to say this text, to a user who says how."""
        said = self.processor.tokenizer.encode(text, add_special_tokens=False)
        question = plain("given", ("user", instructions))
        forced = Forced([*said, self._eos[0]])
        more = {"thinker_logits_processor": [forced]}
        return self.answer(question, len(said) + 1, max_frames, speaker, **more)

    def answer(
        self,
        question: Question,
        max_tokens: int,
        max_frames: int,
        speaker: str = "ethan",
        **more: Any,
    ) -> Answer:
        """One greedy answer; n frames are n + 1 sampled code-0 tokens.

        It is computed once, unless `more` options of `generate` are given.
        """
        if more:
            return self._computed(question, max_tokens, max_frames, speaker, **more)
        key = id(question), max_tokens, max_frames, speaker
        if key not in self._known:
            answer = self._computed(question, max_tokens, max_frames, speaker)
            self._known[key] = question, answer, self.spoken
        _, answer, self.spoken = self._known[key]
        return answer

    @torch.no_grad()
    def _computed(
        self, question: Question, max_tokens: int, max_frames: int, speaker: str, **more: Any
    ) -> Answer:
        inputs = self.inputs(question)
        is_heard = question.options.get("use_audio_in_video", False)
        kept = []
        generate = self.model.talker.generate

        def keep(**options: Any) -> Any:
            kept.append(generate(**options))
            return kept[-1]

        self.model.talker.generate = keep
        try:
            sequences, _ = self.model.generate(
                **inputs,
                speaker=speaker,
                use_audio_in_video=is_heard,
                thinker_max_new_tokens=max_tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=self._eos,
                talker_do_sample=False,
                talker_max_new_tokens=max_frames + 1,
                **more,
            )
        finally:
            self.model.talker.generate = generate
        states = kept[0].hidden_states
        codes = torch.stack([step[-1] for step in states if step[-1] is not None], dim=1)[0]
        pcm = self.model.code2wav(codes.T[None])[0, 0]
        new = sequences[0, inputs["input_ids"].shape[1] :]
        self.spoken = new[:-1].tolist()
        text = self.processor.tokenizer.decode(new, skip_special_tokens=True)
        return Answer(text, codes.cpu().numpy(), pcm.float().cpu().numpy())


class ThinkerReference:
    """The thinker of a checkpoint without a talker, in transformers, float32."""

    def __init__(self, folder: str) -> None:
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        model = load(folder, torch.float32, "cpu")
        assert not model.has_talker
        self._thinker: Any = model.thinker
        self._eos = model.generation_config.eos_token_id

    @torch.no_grad()
    def text(self, question: Question, max_tokens: int) -> str:
        """What it says, greedily, without special tokens."""
        prompt = self.processor.apply_chat_template(
            question.turns, add_generation_prompt=True, tokenize=False
        )
        inputs = self.processor(text=prompt, return_tensors="pt", **question.media)
        ids = self._thinker.generate(
            **inputs, max_new_tokens=max_tokens, do_sample=False, eos_token_id=self._eos
        )
        new = ids[0, inputs["input_ids"].shape[1] :]
        text: str = self.processor.tokenizer.decode(new, skip_special_tokens=True)
        return text

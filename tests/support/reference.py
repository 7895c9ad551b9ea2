"""transformers' own generate as the oracle: text, codes and waveform of one question."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.prompts import Question
from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration


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
        model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self.model: Any = model.eval().to(device)
        config = self.model.config
        if not hasattr(self.model.talker.config, "audio_config"):  # its own lack: sound + image
            self.model.talker.config.audio_config = config.thinker_config.audio_config
        self.spoken: list[int] = []  # tokens that the last answer's talker was given
        self._eos = self.model.generation_config.eos_token_id

    def inputs(self, question: Question) -> Any:
        """Tensors of the processor."""
        prompt = self.processor.apply_chat_template(
            question.turns, add_generation_prompt=True, tokenize=False
        )
        inputs = self.processor(text=prompt, return_tensors="pt", **question.media)
        return inputs.to(self.model.device)

    @torch.no_grad()
    def answer(
        self, question: Question, max_tokens: int, max_frames: int, speaker: str = "ethan"
    ) -> Answer:
        """One greedy answer; n frames are n + 1 sampled code-0 tokens."""
        inputs = self.inputs(question)
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
                use_audio_in_video=False,
                thinker_max_new_tokens=max_tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=self._eos,
                talker_do_sample=False,
                talker_max_new_tokens=max_frames + 1,
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

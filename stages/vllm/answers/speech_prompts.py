"""Speech for a model that transcribes: cut to pieces, and the prompt of each, as vLLM has it."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.model_executor.model_loader import get_model_cls
from vllm.multimodal.audio import split_audio
from vllm.renderers.inputs.preprocess import parse_model_prompt

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.body import Transcribe
from omnistage.stages.vllm.compat import AsyncLLM, SamplingParams
from omnistage.stages.worker.failure import RequestError

Samples = npt.NDArray[Any]

# What a model's generation_config.json says of its sampling, where a request says nothing.
DEFAULTS = ("top_p", "top_k", "min_p", "repetition_penalty")


class SpeechPrompts:
    """The prompts of one engine's model; raises ValueError for one that does not transcribe."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._config = engine.model_config
        self._model: Any = get_model_cls(self._config)
        if not getattr(self._model, "supports_transcription", False):
            name = self._model.__name__
            raise ValueError(f"{name} does not transcribe: serve it with the kind vllm.text")
        self._speech = self._model.get_speech_to_text_config(self._config, "transcribe")
        self._defaults: JsonMap = self._config.get_diff_sampling_param()

    @property
    def rate_hz(self) -> int:
        """Returns the rate of the samples that the model takes."""
        return int(self._speech.sample_rate)

    @property
    def are_cut(self) -> bool:
        """Returns whether long speech is cut to pieces, so that each fits into the context."""
        return bool(self._speech.allow_audio_chunking)

    def cut(self, samples: Samples) -> list[Samples]:
        """Cut speech, float32 [n], where it is quiet, to pieces that the model takes."""
        longest_s = self._speech.max_audio_clip_s
        if not self.are_cut or len(samples) <= longest_s * self.rate_hz:
            return [samples]
        pieces: list[Samples] = split_audio(
            audio_data=samples,
            sample_rate=self.rate_hz,
            max_clip_duration_s=longest_s,
            overlap_duration_s=self._speech.overlap_chunk_second,
            min_energy_window_size=self._speech.min_energy_split_window_size,
        )
        return pieces

    def language_of(self, named: str | None) -> str | None:
        """Return the code of a language by its code, with a region or without, or its name."""
        if named is None:
            return None
        names: Mapping[str, str] = self._model.supported_languages
        codes = {name.lower(): code for code, name in names.items()}
        code = named.lower().replace("_", "-").partition("-")[0]
        code = codes.get(named.lower(), code)
        if code not in names:
            allowed = ", ".join(sorted(names))
            message = f"language: {named!r} is not a language of this model; allowed: {allowed}."
            raise RequestError(400, message, param="language", code="invalid_value")
        return code

    async def language_in(self, piece: Samples, request_id: str) -> str | None:
        """Return the language that the model hears, if it needs one and does not find it itself."""
        if not getattr(self._model, "supports_explicit_language_detection", False):
            return None
        prompt = self._model.get_language_detection_prompt(piece, self._speech)
        tokenizer = self._engine.get_tokenizer()
        allowed = self._model.get_language_token_ids(tokenizer)
        sampling = SamplingParams(max_tokens=1, temperature=0.0, allowed_token_ids=allowed)
        async for output in self._engine.generate(prompt, sampling, f"{request_id}-language"):
            ids = list(output.outputs[0].token_ids)
        language: str = self._model.parse_language_detection_output(ids, tokenizer)
        return language

    async def prompt(self, piece: Samples, body: Transcribe, language: str | None) -> Any:
        """Return the prompt of a piece, ready for the engine."""
        given = SpeechToTextParams(
            audio=piece,
            stt_config=self._speech,
            model_config=self._config,
            language=language,
            request_prompt=body.prompt,
            task_type="translate" if body.to_english else "transcribe",
            to_language="en" if body.to_english else None,
        )
        parsed = parse_model_prompt(self._config, self._model.get_generation_prompt(given))
        (rendered,) = await self._engine.renderer.render_cmpl_async([parsed])
        return rendered

    def sampling(self, body: Transcribe, max_tokens: int | None, **more: Any) -> SamplingParams:
        """Return how a piece is sampled; without `max_tokens` up to the model's context."""
        defaults = {name: self._defaults[name] for name in DEFAULTS if name in self._defaults}
        return SamplingParams(
            **defaults,
            temperature=body.temperature,
            max_tokens=max_tokens,
            logprobs=0 if body.logprobs else None,
            **more,
        )

    def cleaner(self) -> Any:
        """Return what takes the model's own marks out of the text of one piece as it comes."""
        return self._model.get_streaming_post_processor_cls()()

    def separator(self, language: str | None) -> str:
        """Return the text between two pieces."""
        return "" if language in self._model.no_space_languages else " "

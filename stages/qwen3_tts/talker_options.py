"""The options of a Qwen3-TTS talker, by its graph file and by the generation config."""

import json
from pathlib import Path
from typing import Literal

import msgspec
from transformers.utils import GENERATION_CONFIG_NAME, cached_file

from omnistage.stage_configs.json_types import Json
from omnistage.stages.speech.talker_options import VoiceOptions
from omnistage.stages.speech.talker_parts import SamplingDefaults


class SpeakerOptions(VoiceOptions, frozen=True, forbid_unknown_fields=True):
    """The stage's `options`.

    `text`: whether all of a text comes before the speech begins (`whole`), or a token a step while
    it is spoken (`streamed`); by default as the reference does for the model's type.
    """

    text: Literal["whole", "streamed"] | None = None


class Generation(msgspec.Struct, frozen=True):
    """generation_config.json; its defaults are the reference's."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    max_new_tokens: int | None = None
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0

    @classmethod
    def of(cls, model: str) -> "Generation":
        """Reads the options of a folder or a name; a model without the file has the defaults."""
        path = cached_file(
            model, GENERATION_CONFIG_NAME, _raise_exceptions_for_missing_entries=False
        )
        told: Json = {} if path is None else json.loads(Path(path).read_bytes())
        return msgspec.convert(
            {name: value for name, value in told.items() if value is not None}, cls
        )

    @property
    def defaults(self) -> SamplingDefaults:
        """Returns the defaults for each frame's first code; the reference never ends before the
        second.
        """
        return SamplingDefaults(
            temperature=self.temperature if self.do_sample else 0.0,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            min_tokens=2,
            max_tokens=self.max_new_tokens and self.max_new_tokens - 1,  # the last is not heard
        )

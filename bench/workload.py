"""Prompts of random words, each another, in a body that can be any dialect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

PROMPT = "{prompt}"
# Common words that most tokenizers have as one token each, with the space before them.
WORDS = """
about above across after again against ago air all almost alone along already also always among
animal another answer any area arm army around art ask away back bad bank base bear beat beautiful
because become bed before began begin behind being believe below best better between big bird black
blood blue board boat body book both bottom box boy bring brother brought brown building built burn
business buy call came car care carry case cat catch caught cause cell center century certain chair
chance change check child children choose church circle city class clean clear close clothes cloud
coast cold color column come common company complete cook cool copy corner correct cost could count
country course cover cross crowd cry cup current cut dance dark daughter day dead deal death decide
deep design develop did difference direct discover distance doctor dog done door double down draw
dream dress drink drive drop dry during each early earth east easy eat edge effect egg eight either
""".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class PromptWorkload:
    """Makes the bodies of requests. Number k is the same for the same seed.

    `prompt_words` of `words` approximate the prompt's tokens; the server's usage says how many
    there were. `frames` fixes the codec frames of an answer (this server's stage_params).
    `overrides` are laid over the body's fields in order; {prompt} in their strings is the prompt,
    null drops a field.
    """

    seed: int
    prompt_words: int
    max_tokens: int
    modalities: tuple[str, ...] = ("text",)
    voice: str | None = None
    audio_format: str = "pcm16"
    frames: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    has_timeline: bool = False
    words: Sequence[str] = tuple(WORDS)
    overrides: tuple[Mapping[str, Any], ...] = field(default=())

    def prompt(self, number: int) -> str:
        """Random words."""
        return " ".join(Random(f"{self.seed}/{number}").choices(self.words, k=self.prompt_words))

    def body(self, number: int, model: str) -> dict[str, Any]:
        """The body of request `number`."""
        prompt = self.prompt(number)
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "modalities": list(self.modalities),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
        }
        if "audio" in self.modalities:
            voice = {} if self.voice is None else {"voice": self.voice}
            body["audio"] = {**voice, "format": self.audio_format}
        if self.ignore_eos or self.frames is not None:
            body["ignore_eos"] = True
        if self.has_timeline:
            body["return_timeline"] = True
        if self.frames is not None:
            body["stage_params"] = {"talker": {"max_tokens": self.frames, "ignore_eos": True}}
        for override in self.overrides:
            body |= fill(override, prompt)
        return {name: value for name, value in body.items() if value is not None}


def fill(value: Any, prompt: str) -> Any:
    """The same JSON with the prompt put in its strings."""
    match value:
        case str():
            return value.replace(PROMPT, prompt)
        case list():
            return [fill(item, prompt) for item in value]
        case Mapping():
            return {name: fill(item, prompt) for name, item in value.items()}
        case _:
            return value

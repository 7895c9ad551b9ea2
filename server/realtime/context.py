"""Fits a conversation into the contexts of the stages, by an estimate of its tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from omnistage.server.realtime.conversation import Conversation
from omnistage.server.realtime.items import Item
from omnistage.server.realtime.settings import RealtimeSettings, ResponseSettings
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.chat.usage import usage_of
from omnistage.stage_configs.json_types import JsonMap

MAX_ANSWER = 4096  # tokens that are left for an answer's text, where it names no number
SPEECH_FRAMES = 1024  # that are left for an answer's speech, in a talker's context
PART = 4  # neither takes more than this part of a context
ITEM_BYTES = 16  # of a template around an item, in text
# Tokens until a response has shown the model's own: few, as what is too long is refused anyway.
OF_TEXT, OF_AUDIO, OF_IMAGE = 0.2, 0.012, 64.0  # of a byte, a millisecond, an image


@dataclass(frozen=True, slots=True)
class Amounts:
    """An amount of each kind of content: bytes of text, milliseconds of audio, images."""

    text: float = 0.0
    audio: float = 0.0
    image: float = 0.0

    @classmethod
    def of(cls, items: Sequence[Item], fixed: str = "") -> "Amounts":
        """Measure items, and a text before them."""
        parts = [part for item in items for part in item.content]
        heard = [part.sound.ms for part in parts if part.sound is not None]
        words = [part.words for part in parts if part.sound is None and part.image is None]
        texts = [fixed, *words, *(item.text + item.name for item in items)]
        num_bytes = sum(len(text.encode()) for text in texts) + ITEM_BYTES * len(items)
        return cls(num_bytes, sum(heard), sum(part.image is not None for part in parts))


class TokenRates:
    """Tokens by kind of content, as the usage of the session's last response has them."""

    def __init__(self) -> None:
        self._rates = Amounts(OF_TEXT, OF_AUDIO, OF_IMAGE)

    def tokens(self, amounts: Amounts) -> float:
        """Estimate the tokens of contents."""
        rates = self._rates
        return amounts.text * rates.text + amounts.audio * rates.audio + amounts.image * rates.image

    def learn(self, amounts: Amounts, usage: JsonMap) -> None:
        """Take the rates of a prompt; one that was not read teaches nothing."""
        details = usage_of(usage, 0)["prompt_tokens_details"]
        if not usage.get("prompt_tokens"):
            return
        old = self._rates
        self._rates = Amounts(
            _rate(details["text_tokens"], amounts.text, old.text),
            _rate(details["audio_tokens"], amounts.audio, old.audio),
            _rate(details["image_tokens"], amounts.image, old.image),
        )


def _rate(tokens: int, amount: float, before: float) -> float:
    return tokens / amount if tokens and amount else before


def most_tokens(runtime: Runtime, settings: ResponseSettings) -> float:
    """Return how many tokens a prompt may have, so that the answer has room at each stage.

    The thinker writes its answer behind the prompt, the talker the frames of its speech.
    """
    graph = runtime.graph
    wanted = settings.max_output_tokens
    most = float("inf")
    for stage in graph.path(settings.chat_outputs):
        length = runtime.fleet.one_of(stage).record.max_model_len
        if length is not None:
            is_entry = stage == graph.entry_of("text")
            room = SPEECH_FRAMES if not is_entry else wanted if wanted != "inf" else MAX_ANSWER
            most = min(most, length - min(room, length // PART))
    return most


class ContextTruncation:
    """The truncation of one response's conversation, as its session wants it: by whole turns."""

    def __init__(
        self,
        conversation: Conversation,
        rates: TokenRates,
        session: RealtimeSettings,
        settings: ResponseSettings,
        runtime: Runtime,
    ) -> None:
        self._conversation = conversation
        self._rates = rates
        self._retained = session.retained
        self._fixed = settings.instructions + json.dumps(settings.tools)
        self._most = most_tokens(runtime, settings)
        self._most -= rates.tokens(Amounts.of((), self._fixed))
        if session.most_after_instructions is not None:
            self._most = min(self._most, session.most_after_instructions)

    def fit(self) -> bool:
        """Shorten the context if it is estimated to be too long; returns whether it was."""
        if self._retained is None or self._weight(self._conversation.context) <= self._most:
            return False
        return self._conversation.shorten(self._weight, self._retained * self._most)

    def shorten(self) -> bool:
        """Shorten the context, which was refused; returns False if nothing can go."""
        if self._retained is None:
            return False
        now = self._weight(self._conversation.context)
        return self._conversation.shorten(self._weight, self._retained * now)

    def learn(self, items: Sequence[Item], usage: JsonMap) -> None:
        """Take the tokens of a prompt with these items for what such contents have."""
        self._rates.learn(Amounts.of(items, self._fixed), usage)

    def _weight(self, items: Sequence[Item]) -> float:
        return self._rates.tokens(Amounts.of(items))

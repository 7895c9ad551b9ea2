"""Chooses the tokens of an answer that are spoken: those whose text was released to the client."""

from collections.abc import Callable

from omnistage.stage_configs.json_types import JsonMap


class ReleasedTokens:
    """One answer's.

    Text held back for a stop string, or cut by one, is not spoken. Like the reference, only tokens
    that the model was fed back are spoken: never the last one sampled, be it EOS or the one at the
    length limit. Tool calls and reasoning are not spoken.

    `text_length`: how long the text of token ids is.
    """

    def __init__(self, body: JsonMap, text_length: Callable[[list[int]], int]) -> None:
        self._has_stop = bool(body.get("stop"))
        self._text_length = text_length
        self._held: list[int] = []
        self._released_text = 0
        self._released: list[int] = []
        self.is_silent = False  # within a tool call or reasoning, or the token that ends them

    def __len__(self) -> int:
        return len(self._released)

    def add(self, chunk: JsonMap) -> list[int]:
        """Take one chunk of the answer; the ids that it releases."""
        before = len(self._released)
        for choice in chunk.get("choices", ()):
            self._take(choice)
        return self._released[before:]

    def _take(self, choice: JsonMap) -> None:
        delta = choice.get("delta", {})
        is_finished = choice.get("finish_reason") is not None
        token_ids = list(choice.get("token_ids") or ())
        text = delta.get("content") or ""
        if delta.get("tool_calls") or delta.get("reasoning"):
            self.is_silent = True
        elif text:
            self.is_silent = False
        if self.is_silent:
            self._held.clear()
            return
        self._held += token_ids[:-1] if is_finished else token_ids
        self._release(text, is_finished)

    def _release(self, text: str, is_finished: bool) -> None:
        if not self._has_stop:
            if text or is_finished:
                self._released += self._held
                self._held = []
            return
        self._released_text += len(text)
        while self._held:
            length = self._text_length([*self._released, self._held[0]])
            if length > self._released_text:
                return
            self._released.append(self._held.pop(0))

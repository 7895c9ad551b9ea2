"""A whole chat completion put together from its chunks."""

from dataclasses import dataclass, field

from omnistage.server.tasks.chat.chunks import ChatChunk
from omnistage.stage_configs.json_types import JsonMap


@dataclass(slots=True)
class SpokenPart:
    """The spoken part of a message as far as it has come."""

    id: str = ""
    expires_at: int = 0
    transcript: str = ""
    data: bytearray = field(default_factory=bytearray)
    codes: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, audio: JsonMap) -> None:
        """Add one `delta.audio`."""
        self.id = audio.get("id", self.id)
        self.expires_at = audio.get("expires_at", self.expires_at)
        self.transcript += audio.get("transcript", "")
        self.data += audio.get("data", b"")
        self.codes += audio.get("codes", ())

    def to_message(self, has_codes: bool) -> ChatChunk:
        """Return `message.audio`; its data are a file, also without samples."""
        return {
            "id": self.id,
            "data": bytes(self.data),
            "expires_at": self.expires_at,
            "transcript": self.transcript,
            **({"codes": self.codes} if has_codes else {}),
        }


@dataclass(slots=True)
class PartialChoice:
    """One choice as far as it has come."""

    index: int
    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    texts: dict[str, str] = field(default_factory=dict)
    tool_calls: dict[int, ChatChunk] = field(default_factory=dict)
    logprobs: ChatChunk | None = None
    token_ids: list[int] | None = None
    images: list[ChatChunk] = field(default_factory=list)
    audio: SpokenPart = field(default_factory=SpokenPart)

    def add(self, choice: JsonMap) -> None:
        """Add one delta."""
        delta = choice["delta"]
        for name in ("content", "refusal", "reasoning", "reasoning_content"):
            if delta.get(name):
                self.texts[name] = self.texts.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            self._add_call(call)
        self.images += delta.get("images", ())
        self.audio.add(delta.get("audio", {}))
        if choice["logprobs"] is not None:
            self.logprobs = merged(self.logprobs, choice["logprobs"])
        if "token_ids" in choice:
            self.token_ids = [*(self.token_ids or ()), *choice["token_ids"]]
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.stop_reason = choice.get("stop_reason", self.stop_reason)

    def _add_call(self, call: JsonMap) -> None:
        function = {"name": "", "arguments": ""}
        whole = self.tool_calls.setdefault(
            call["index"], {"id": "", "type": "function", "function": function}
        )
        whole["id"] = call.get("id") or whole["id"]
        whole["type"] = call.get("type") or whole["type"]
        for name, text in (call.get("function") or {}).items():
            whole["function"][name] = whole["function"].get(name, "") + (text or "")

    def to_dict(self, audio: ChatChunk | None) -> ChatChunk:
        """The choice of a completion."""
        is_else = bool(self.tool_calls or self.images)
        has_content = audio is None and ("content" in self.texts or not is_else)
        message: ChatChunk = {
            "role": "assistant",
            "refusal": None,
            "annotations": [],
            **self.texts,
            "content": self.texts.get("content", "") if has_content else None,
        }
        if self.tool_calls:
            message["tool_calls"] = [call for _, call in sorted(self.tool_calls.items())]
        if self.images:
            message["images"] = self.images
        if audio is not None:
            message["audio"] = audio
        return {
            "index": self.index,
            "message": message,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            **({} if self.token_ids is None else {"token_ids": self.token_ids}),
        }


class Completion:
    """Collects the chunks of one answer."""

    def __init__(self) -> None:
        self._head: ChatChunk = {}
        self._choices: dict[int, PartialChoice] = {}
        self._usage: ChatChunk = {}

    def add(self, chunk: ChatChunk) -> None:
        self._usage = chunk.get("usage") or self._usage
        self._head |= {key: chunk[key] for key in chunk if key not in ("choices", "usage")}
        for choice in chunk["choices"]:
            self._choices.setdefault(choice["index"], PartialChoice(choice["index"])).add(choice)

    def to_text(self) -> ChatChunk:
        """The completion of an answer of text or images."""
        return self._to_dict([choice.to_dict(None) for choice in self._sorted()])

    def to_speech(self, has_codes: bool) -> ChatChunk:
        """The completion of a spoken answer."""
        return self._to_dict(
            [choice.to_dict(choice.audio.to_message(has_codes)) for choice in self._sorted()]
        )

    def _sorted(self) -> list[PartialChoice]:
        return [choice for _, choice in sorted(self._choices.items())]

    def _to_dict(self, choices: list[ChatChunk]) -> ChatChunk:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self._usage,
            "service_tier": None,
        }


def merged(left: ChatChunk | None, right: ChatChunk) -> ChatChunk:
    """Two stretches of log probabilities as one."""
    if left is None:
        return dict(right)
    content = [*(left.get("content") or ()), *(right.get("content") or ())]
    return {**left, "content": content}

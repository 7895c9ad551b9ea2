"""From the stages' outputs to OpenAI's chat completion chunks, as their clients insist on them.

Each chunk is a dict whose audio data is bytes: whoever encodes it makes base64 of it. The usage
chunk always comes last; whether a client sees it is the caller's business.
"""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from omnistage.server.runtime.request import AudioOutput, Output, TextOutput
from omnistage.server.tasks.chat.audio_history import LIFETIME_S
from omnistage.server.tasks.chat.usage import usage_of
from omnistage.stage_configs.json_types import Json, JsonMap

ChatChunk = Json

DELTA_FIELDS = ("content", "refusal", "tool_calls", "reasoning", "reasoning_content")
FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that all chunks of one answer share, and how much vLLM adds to them."""

    id: str
    model: str
    has_token_ids: bool = False
    object: str = "chat.completion.chunk"
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, choices: list[ChatChunk], **more: Any) -> ChatChunk:
        """One chunk."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }

    def extras(self, chunk: JsonMap, name: str) -> ChatChunk:
        """vLLM's token ids under `name`, if the client asked for them and they are there."""
        value = chunk.get(name) if self.has_token_ids else None
        return {} if value is None else {name: value}


class AnswerChunks(Protocol):
    """Makes the chunks of one answer."""

    head: AnswerHead

    def chunks_of(self, output: Output) -> list[ChatChunk]:
        """Returns what one output adds."""

    def finish(self) -> list[ChatChunk]:
        """Returns what is left when every output has ended."""


class TextChunks:
    """An answer of text: vLLM's chunks, one by one."""

    def __init__(self, head: AnswerHead) -> None:
        self.head = head
        self._opened: set[int] = set()
        self._usage: JsonMap = {}

    def chunks_of(self, output: Output) -> list[ChatChunk]:
        """The same chunk as one of ours."""
        assert isinstance(output, TextOutput)
        chunk = output.chunk
        self._usage = chunk.get("usage") or self._usage
        choices = [self._choice(choice) for choice in chunk.get("choices", ())]
        said = [choice for choice in choices if says_something(choice)]
        if not said:
            return []
        more = self.head.extras(chunk, "prompt_token_ids")
        return [self.head.chunk(said, **more, **running_usage(chunk))]

    def _choice(self, choice: JsonMap) -> ChatChunk:
        index = choice["index"]
        role = {} if index in self._opened else {"role": "assistant"}
        self._opened.add(index)
        return {
            "index": index,
            "delta": {**role, **delta_of(choice)},
            "logprobs": logprobs_of(choice),
            **ending_of(choice),
            **self.head.extras(choice, "token_ids"),
        }

    def finish(self) -> list[ChatChunk]:
        """The usage."""
        return [self.head.chunk([], usage=usage_of(self._usage, 0))]


class SpeechChunks:
    """An answer of speech: the text is its transcript, the end waits for the last sample.

    Without words nothing of the text is sent, but calls of tools.
    """

    def __init__(self, head: AnswerHead, has_codes: bool, has_words: bool) -> None:
        self.head = head
        self.audio_id = f"audio_{uuid4().hex}"
        self.expires_at = head.created + LIFETIME_S
        self.transcript = ""
        self._has_codes = has_codes
        self._has_words = has_words
        self._is_opened = False
        self._has_audio_id = False
        self._ending: ChatChunk = ending_of({"finish_reason": "stop"})
        self._usage: JsonMap = {}
        self._running: ChatChunk = {}  # the usage so far, if each chunk is to have it
        self._num_frames = 0

    def chunks_of(self, output: Output) -> list[ChatChunk]:
        """A delta of the transcript or of the audio."""
        if isinstance(output, TextOutput):
            self._running = running_usage(output.chunk) or self._running
            chunks = self._open() + self._text_chunks(output.chunk)
            if prompt := self.head.extras(output.chunk, "prompt_token_ids"):
                chunks = chunks or [self._chunk(choice_of({}))]  # audio can come before all text
                chunks[0] |= prompt
            return chunks
        assert isinstance(output, AudioOutput)
        return self._open() + self._audio_chunks(output)

    def _open(self) -> list[ChatChunk]:
        if self._is_opened:
            return []
        self._is_opened = True
        return [self._chunk(choice_of({"role": "assistant", "refusal": None}))]

    def _chunk(self, choice: ChatChunk) -> ChatChunk:
        return self.head.chunk([choice], **self._running)

    def _text_chunks(self, chunk: JsonMap) -> list[ChatChunk]:
        self._usage = chunk.get("usage") or self._usage
        chunks = []
        for choice in chunk.get("choices", ()):
            if finish_reason_of(choice):
                self._ending = ending_of(choice)
            delta = delta_of(choice)
            text = delta.pop("content", None)
            if not self._has_words:
                delta = {name: delta[name] for name in ("tool_calls",) if name in delta}
            if text:
                self.transcript += text
                delta |= self._audio(transcript=text) if self._has_words else {}
            logprobs = logprobs_of(choice)
            more = self.head.extras(choice, "token_ids")
            if delta or logprobs or more:
                chunks.append(self._chunk({**choice_of(delta), "logprobs": logprobs, **more}))
        return chunks

    def _audio_chunks(self, output: AudioOutput) -> list[ChatChunk]:
        if output.last:
            self._num_frames = output.num_frames
        audio: ChatChunk = {}
        if output.data:
            audio["data"] = output.data
        if self._has_codes and output.codes:
            audio["codes"] = output.codes
        return [self._chunk(choice_of(self._audio(**audio)))] if audio else []

    def _audio(self, **fields: object) -> ChatChunk:
        """`delta.audio`; clients concatenate ids, so only the first one carries it."""
        if self._has_audio_id:
            return {"audio": fields}
        self._has_audio_id = True
        return {"content": None, "audio": {"id": self.audio_id, **fields}}

    def finish(self) -> list[ChatChunk]:
        """When the audio expires, why the answer ended, the usage."""
        usage = usage_of(self._usage, self._num_frames)
        return [
            *self._open(),
            self._chunk(choice_of(self._audio(expires_at=self.expires_at))),
            self._chunk({**choice_of({}), **self._ending}),
            self.head.chunk([], usage=usage),
        ]


async def with_usage(
    chunks: AsyncGenerator[ChatChunk, None], is_wanted: bool
) -> AsyncGenerator[ChatChunk, None]:
    """Yield a stream's chunks: with its usage every other one has that so far, or null for it.

    Without it, none has any.
    """
    so_far: ChatChunk | None = None
    async with aclosing(chunks):
        async for chunk in chunks:
            if is_wanted:
                so_far = chunk.setdefault("usage", so_far)
            elif "usage" in chunk:
                continue
            yield chunk


def says_something(choice: ChatChunk) -> bool:
    """Returns whether a client misses it: a token whose text is held back makes an empty delta."""
    return any(choice.get(name) for name in ("delta", "logprobs", "finish_reason", "token_ids"))


def choice_of(delta: ChatChunk, finish_reason: str | None = None, index: int = 0) -> ChatChunk:
    """A choice of a chunk."""
    ending = ending_of({"finish_reason": finish_reason})
    return {"index": index, "delta": delta, "logprobs": None, **ending}


def ending_of(choice: Mapping[str, object]) -> ChatChunk:
    """Return why a choice ended: OpenAI's reason, and vLLM's stop string or token, if it did."""
    reason = finish_reason_of(choice)
    stop = {} if reason is None else {"stop_reason": choice.get("stop_reason")}
    return {"finish_reason": reason, **stop}


def running_usage(chunk: JsonMap) -> ChatChunk:
    """Return the usage that a chunk of vLLM's has before the last one, if it was asked for it."""
    usage = chunk.get("usage")
    return {"usage": usage_of(usage, 0)} if usage and chunk["choices"] else {}


def delta_of(choice: JsonMap) -> ChatChunk:
    """The parts of a delta that OpenAI's clients know, but for the role."""
    delta = choice.get("delta", {})
    made = {name: delta[name] for name in DELTA_FIELDS if delta.get(name) is not None}
    if len(made.get("tool_calls", ())) > 1:
        made["tool_calls"] = joined_calls(made["tool_calls"])
    return made


def joined_calls(parts: Sequence[ChatChunk]) -> list[ChatChunk]:
    """Join the parts of each call: of several of one call, some clients read the first alone.

    vLLM sends a call's name and its arguments apart, in one delta where they were made at once.
    """
    calls: dict[int, ChatChunk] = {}
    for part in parts:
        known = calls.get(part["index"], {})
        functions = [call.get("function") or {} for call in (known, part)]
        function = {**functions[0], **functions[1]}
        for name in function.keys() & {"name", "arguments"}:
            function[name] = "".join(one.get(name) or "" for one in functions)
        calls[part["index"]] = {**known, **part, "function": function}
    return list(calls.values())


def logprobs_of(choice: JsonMap) -> ChatChunk | None:
    """The log probabilities, with the key for refusals that the schema wants."""
    logprobs = choice.get("logprobs")
    return {"refusal": None, **logprobs} if logprobs else None


def finish_reason_of(choice: Mapping[str, object]) -> str | None:
    """Why the choice ended; a reason of vLLM's own is a stop."""
    reason = choice.get("finish_reason")
    return reason if reason is None or reason in FINISH_REASONS else "stop"

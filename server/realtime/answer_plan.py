"""The chat that a response is, before it runs."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from omnistage.server.realtime.chat_flow import Body, ChatFlow
from omnistage.server.realtime.conversation import messages_of
from omnistage.server.realtime.items import Item
from omnistage.server.realtime.settings import ResponseSettings
from omnistage.server.realtime.voice.formats import output_encoder
from omnistage.server.responses.translate import chat_tools
from omnistage.server.runtime.request import Output

USAGE = {"include_usage": True, "continuous_usage_stats": True}  # of cancelled responses, too


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The settings of one answer, and the items that it answers, as they were when it was made."""

    settings: ResponseSettings
    model: str | None
    speaker: str | None  # None: the model's own
    items: Sequence[Item]
    revisions: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        settings: ResponseSettings,
        model: str | None,
        speaker: str | None,
        items: Sequence[Item],
    ) -> Self:
        """Make a plan of items as they are now."""
        return cls(settings, model, speaker, items, tuple(item.revision for item in items))

    def is_same(self, other: "AnswerPlan") -> bool:
        """Return whether another one would ask the model the same."""
        ours = (self.settings, self.model, self.speaker, self.revisions)
        return ours == (other.settings, other.model, other.speaker, other.revisions)

    @property
    def prompt(self) -> tuple[Any, ...]:
        """Return what the prompt is made of, but for what says how it is answered."""
        settings = self.settings
        tools = (settings.tools, settings.tool_choice)
        return self.model, self.is_spoken, settings.instructions, tools, self.revisions

    @property
    def is_spoken(self) -> bool:
        """Return whether the answer is spoken."""
        return self.settings.output_modalities == ["audio"]

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to be read."""
        return not (self.items or self.settings.instructions or self.settings.tools)

    async def read(self, flow: ChatFlow) -> None:
        """Have the model read the prompt, and say nothing of it; raises ApiError."""
        await flow.read(self._body_to_read, self.is_spoken)

    def _body_to_read(self) -> Body:
        return {**self.body(hears=True), "modalities": ["text"], "max_completion_tokens": 1}

    def keeping(self, items: Sequence[Item]) -> "AnswerPlan":
        """Return the plan of fewer items."""
        return replace(self, items=items, revisions=tuple(item.revision for item in items))

    def outputs(self, flow: ChatFlow) -> AsyncGenerator[Output, None]:
        """Yield what the model makes, its audio in the format of the answer; raises ApiError."""
        output = self.settings.audio.output
        make_encoder = partial(output_encoder, output.format.type, output.speed)
        return flow.outputs(partial(self.body, flow.hears), make_encoder)

    def body(self, hears: bool) -> Body:
        """Return the chat; raises ApiError.

        `hears`: its model takes audio; another gets what was said.
        """
        settings = self.settings
        body = {
            "model": self.model,
            "messages": messages_of(self.items, settings.instructions, hears),
            "modalities": settings.chat_outputs,
            "stream": True,
            "stream_options": USAGE,
            "temperature": settings.temperature,
            "parallel_tool_calls": settings.parallel_tool_calls,
            **chat_tools(enumerate(settings.tools), settings.tool_choice),
        }
        if self.is_spoken and self.speaker is not None:
            body["audio"] = {"voice": self.speaker, "format": "wav"}
        if settings.max_output_tokens != "inf":
            body["max_completion_tokens"] = settings.max_output_tokens
        return {name: value for name, value in body.items() if value is not None}

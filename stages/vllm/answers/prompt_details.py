"""The tokens of a prompt by kinds, from its stream's first chunk on; vLLM's last alone has them."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from omnistage.stages.vllm.compat import OpenAIServingChat, OpenAIServingCompletion


class DetailedLines:
    """The lines of one stream; `details` are there once the first has come."""

    def __init__(self, num_of_media: Mapping[str, int] | None) -> None:
        self.details: dict[str, Any] | None = None  # as vLLM's prompt_tokens_details
        self.lines: AsyncGenerator[str, None]
        self._num_of_media = num_of_media

    def __aiter__(self) -> AsyncGenerator[str, None]:
        return self.lines

    async def aclose(self) -> None:
        """End the answer."""
        await self.lines.aclose()

    def note(self, num_cached: int | None) -> None:
        """Take the tokens of the prompt that the cache had, of the engine's first result."""
        if self.details is None:
            media = dict(self._num_of_media or {})
            self.details = {"cached_tokens": num_cached or 0, "multimodal_tokens": media}


class DetailedChat(OpenAIServingChat):
    """vLLM's chat, whose streams are DetailedLines."""

    def chat_completion_stream_generator(
        self, request: Any, result_generator: AsyncIterator[Any], *rest: Any, **more: Any
    ) -> DetailedLines:
        """Return the lines of a chat's events."""
        made = DetailedLines(more.get("mm_token_counts"))
        results = _noted(result_generator, lambda one: made.note(one.num_cached_tokens))
        made.lines = super().chat_completion_stream_generator(request, results, *rest, **more)
        return made


class DetailedCompletion(OpenAIServingCompletion):
    """vLLM's text completions, whose streams are DetailedLines."""

    def completion_stream_generator(
        self,
        request: Any,
        engine_inputs: Any,
        result_generator: AsyncIterator[Any],
        *rest: Any,
        **more: Any,
    ) -> DetailedLines:
        """Return the lines of a completion's events."""
        made = DetailedLines(None)
        results = _noted(result_generator, lambda one: made.note(one[1].num_cached_tokens))
        made.lines = super().completion_stream_generator(
            request, engine_inputs, results, *rest, **more
        )
        return made


async def _noted(
    results: AsyncIterator[Any], note: Callable[[Any], None]
) -> AsyncGenerator[Any, None]:
    """Yield an engine's results, each noted first."""
    async for result in results:
        note(result)
        yield result

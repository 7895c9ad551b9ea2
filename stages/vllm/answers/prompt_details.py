"""The tokens of a chat's prompt by kinds, from its first chunk on; vLLM's last alone has them."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from omnistage.stages.vllm.compat import OpenAIServingChat


class DetailedLines:
    """The lines of one streamed chat; `details` are there once the first has come."""

    def __init__(self, num_of_media: Mapping[str, int] | None) -> None:
        self.details: dict[str, Any] | None = None  # as vLLM's prompt_tokens_details
        self.lines: AsyncGenerator[str, None]
        self._num_of_media = num_of_media

    def __aiter__(self) -> AsyncGenerator[str, None]:
        return self.lines

    async def aclose(self) -> None:
        """End the chat."""
        await self.lines.aclose()

    async def noted(self, results: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield the engine's results, of which the first has the tokens that the cache had."""
        async for result in results:
            if self.details is None:
                media = dict(self._num_of_media or {})
                cached = result.num_cached_tokens or 0
                self.details = {"cached_tokens": cached, "multimodal_tokens": media}
            yield result


class DetailedChat(OpenAIServingChat):
    """vLLM's chat, whose streams are DetailedLines."""

    def chat_completion_stream_generator(
        self, request: Any, result_generator: AsyncIterator[Any], *rest: Any, **more: Any
    ) -> DetailedLines:
        """Return the lines of a chat's events."""
        made = DetailedLines(more.get("mm_token_counts"))
        results = made.noted(result_generator)
        made.lines = super().chat_completion_stream_generator(request, results, *rest, **more)
        return made

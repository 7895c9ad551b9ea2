"""POST /v1/completions: prompts in, text out, in OpenAI's older shape."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.common.trace import FIRST_TEXT, GATEWAY, current_trace
from omnistage.server.endpoints.answers import TextCompletion
from omnistage.server.endpoints.examples import text_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.request import HttpCaller, JsonRoute
from omnistage.server.http.sse import EventStream
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.runtime.request import TextOutput
from omnistage.server.tasks.chat.chunks import (
    AnswerHead,
    ChatChunk,
    finish_reason_of,
    running_usage,
    with_usage,
)
from omnistage.server.tasks.chat.completion_fields import CompletionRequest
from omnistage.server.tasks.chat.usage import usage_of
from omnistage.server.tasks.completion import RunningCompletion, run_completion
from omnistage.stage_configs.json_types import JsonMap


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/completions."""
    router = APIRouter(route_class=JsonRoute)
    body = json_examples(text_examples(gateway.runtime.graph))
    about = described("Create a completion", TextCompletion, (EVENTS,), body=body)
    router.post("/v1/completions", **about)(TextCompletions(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class TextCompletions:
    """Answers prompts by running them through the graph's entry stage."""

    gateway: Gateway

    async def create(self, asked: CompletionRequest, http: HttpRequest) -> Response:
        """Answer with what follows each prompt: whole, or as events while it is made."""
        running = await run_completion(self.gateway, asked, HttpCaller(http))
        head = AnswerHead(
            running.request.id, running.model, bool(asked.return_token_ids), "text_completion"
        )
        headers = warning_headers(asked.unknown)
        if asked.stream:
            events = with_usage(self._chunks(running, head), asked.has_usage)
            limits = (self.gateway.options.keep_alive_s, self.gateway.options.max_unsent_bytes)
            return EventStream(events, *limits, headers)
        return await whole_answer(http, head.id, self._collect(running, head), headers)

    async def _chunks(
        self, running: RunningCompletion, head: AnswerHead
    ) -> AsyncGenerator[ChatChunk, None]:
        """One piece of text a chunk, the usage last."""
        usage: JsonMap = {}
        timeline = current_trace().timeline
        async with aclosing(running.outputs) as outputs:
            async for output in outputs:
                assert isinstance(output, TextOutput)
                usage = output.chunk.get("usage") or usage
                choices = [choice_of(one, head) for one in output.chunk.get("choices", ())]
                if choices:
                    yield head.chunk(choices, **running_usage(output.chunk))
                    timeline.mark(GATEWAY, FIRST_TEXT)
        if running.request.message.fields["max_tokens"] == 0:
            # vLLM makes one to read the prompt, and keeps it.
            usage = {**usage, "completion_tokens": 0}
        yield head.chunk([], usage=usage_of(usage, 0))

    async def _collect(self, running: RunningCompletion, head: AnswerHead) -> ChatChunk:
        choices: dict[int, PartialText] = {}
        usage: ChatChunk = {}
        async with aclosing(self._chunks(running, head)) as chunks:
            async for chunk in chunks:
                usage = chunk.get("usage", usage)
                for choice in chunk["choices"]:
                    choices.setdefault(choice["index"], PartialText()).add(choice)
        whole = [choice.to_dict(index) for index, choice in sorted(choices.items())]
        return head.chunk(whole, usage=usage)


@dataclass(slots=True)
class PartialText:
    """One choice as far as it has come."""

    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: dict[str, list[Any]] | None = None
    token_ids: dict[str, list[int]] = field(default_factory=dict)

    def add(self, choice: JsonMap) -> None:
        """Add one piece."""
        self.text += choice["text"]
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        if choice["stop_reason"] is not None:
            self.stop_reason = choice["stop_reason"]
        if choice["logprobs"] is not None:
            self.logprobs = self.logprobs or {}
            for name, values in choice["logprobs"].items():
                self.logprobs.setdefault(name, []).extend(values)
        for name in ("prompt_token_ids", "token_ids"):
            if name in choice:
                self.token_ids.setdefault(name, []).extend(choice[name])

    def to_dict(self, index: int) -> ChatChunk:
        """The choice of a completion."""
        return {
            "index": index,
            "text": self.text,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason or "stop",
            "stop_reason": self.stop_reason,
            **self.token_ids,
        }


def choice_of(choice: JsonMap, head: AnswerHead) -> ChatChunk:
    """A piece of one choice, without what is vLLM's alone."""
    return {
        "index": choice["index"],
        "text": choice["text"],
        "logprobs": choice.get("logprobs"),
        "finish_reason": finish_reason_of(choice),
        "stop_reason": choice.get("stop_reason"),
        **head.extras(choice, "prompt_token_ids"),
        **head.extras(choice, "token_ids"),
    }

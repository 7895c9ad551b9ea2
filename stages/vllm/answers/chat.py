"""vLLM's own serving classes, used as a library: templates, tools, reasoning, logprobs."""

import json
import logging
import re
from collections.abc import AsyncGenerator, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import ValidationError
from vllm.platforms import current_platform

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.vllm.answers.encoder_room import places_of, with_part
from omnistage.stages.vllm.answers.prompt_details import DetailedChat, DetailedCompletion
from omnistage.stages.vllm.answers.rendering import Rendering
from omnistage.stages.vllm.answers.traces import as_http
from omnistage.stages.vllm.compat import (
    CLIENT_ERRORS,
    AsyncLLM,
    BaseModelPath,
    ChatCompletionRequest,
    CompletionRequest,
    LoRARequest,
    OpenAIServingModels,
    accepted,
)
from omnistage.stages.worker.failure import RequestError

logger = logging.getLogger(__name__)

LOST = "Internal server error"  # what vLLM says of a request that its engine ended with an error
# Of media that do not fit, and of ids that are no token.
INPUT_REFUSALS = ("encoder cache", "out of vocabulary")
# Of media that the model's processor raises over: what it says has their numbers in it.
PROCESSING = ("Failed to apply", "Failed to load")
PROCESSED = re.compile(r"'(audio|image|video)s?': \[")
UNPROCESSED = "cannot be processed by the model: it is too short, too small or too thin"
# Fields that a grammar comes from.
CONSTRAINING = ("structured_outputs", "response_format", "tools")
# Fields that forbid tokens, also the last ones that a grammar allows.
FORBIDDING = ("allowed_token_ids", "bad_words")


class MediaLostError(RequestError):
    """The engine ended a request before its first token, as it does without a medium's data."""


class ChatServing:
    """Chat and text completions of one engine, as dicts of OpenAI's chunks."""

    def __init__(self, engine: AsyncLLM, name: str, options: JsonMap) -> None:
        self._rendering = rendering = Rendering(engine, options)
        template = rendering.template
        models = OpenAIServingModels(engine, [BaseModelPath(name=name, model_path=name)])
        self.loras: MutableMapping[str, LoRARequest] = (
            models.lora_requests
        )  # by the names of models
        shared: dict[str, object] = {
            "engine_client": engine,
            "models": models,
            "request_logger": None,
            "online_renderer": rendering.renderer,
            "enable_prompt_tokens_details": True,
        }
        chat_options = {**template, **shared, "response_role": "assistant"}
        self._with_tools = DetailedChat(**accepted(DetailedChat, chat_options))
        strict = {**chat_options, "online_renderer": rendering.strict_renderer}
        self._with_forced_calls = DetailedChat(**accepted(DetailedChat, strict))
        # A parser goes through the whole answer again at each token.
        chat_options |= {"tool_parser": None, "enable_auto_tools": False}
        self._chat = DetailedChat(**accepted(DetailedChat, chat_options))
        self._completion = DetailedCompletion(**accepted(DetailedCompletion, shared))
        self._name = name
        self._vocab_size = engine.model_config.get_vocab_size()
        has_adapters = engine.vllm_config.lora_config is not None
        self._has_adapters_on_cpu = has_adapters and current_platform.is_cpu()

    async def stream(
        self, request_id: str, body: JsonMap, headers: dict[str, str] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Chunks of one answer, to messages each with its token ids; raises RequestError.

        `headers`: those of its trace, if it is recorded.
        """
        self._check_stops(body)
        self._check_echo(body)
        self._rendering.check(body)
        for is_last_try in (False, True):
            try:
                async with aclosing(self._answer(request_id, body, headers)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except MediaLostError:
                # vLLM's front took it for known to the engine, as after a request that was
                # cancelled on its way; it has forgotten that by now, and sends the media.
                if is_last_try:
                    raise
                logger.info("request %s is made again: the engine has lost a medium", request_id)

    async def _answer(
        self, request_id: str, body: JsonMap, headers: dict[str, str] | None
    ) -> AsyncGenerator[Any, None]:
        """Chunks of one try; raises RequestError."""
        try:
            result = await self._begin(request_id, body, headers)
        except ValidationError as error:
            first = error.errors()[0]
            param = blamed(first["loc"][:1], body)
            raise RequestError(400, first["msg"], param=param, code="invalid_value") from error
        except CLIENT_ERRORS as error:
            raise request_error(error, body) from error
        if not hasattr(result, "__aiter__"):
            told = result.error
            raise failed(int(told.code), told.message, told.param, body)
        is_whole = False
        chunks = _chunks_of(result, body)
        async with aclosing(chunks):
            async for chunk in chunks:
                is_whole = not chunk["choices"]  # the usage chunk comes last
                yield chunk
        if not is_whole:
            raise RequestError(500, "The engine ended the answer before its usage.")

    async def _begin(self, request_id: str, body: JsonMap, headers: dict[str, str] | None) -> Any:
        fields = {
            "model": self._name,  # unless the body has that of an adapter
            "stream_options": {"include_usage": True},
            **body,
            "stream": True,
            "request_id": request_id,
            "vllm_xargs": {"omnistage_id": request_id},
        }
        if "prompt" in body:
            asked = CompletionRequest(**fields)
            return await self._completion.create_completion(asked, as_http(headers))
        fields["messages"] = [self._rendering.message(one) for one in body["messages"]]
        fields["return_token_ids"] = True
        chat = self._chat
        if "tools" in body:
            chat = self._with_forced_calls if must_call(body) else self._with_tools
        asked_chat = ChatCompletionRequest(**fields)
        return await chat.create_chat_completion(asked_chat, as_http(headers))

    def _check_stops(self, body: JsonMap) -> None:
        """vLLM checks the ids itself since 0.32 only; its samplers write to the logits at them."""
        for token_id in body.get("stop_token_ids") or ():
            if token_id >= self._vocab_size:
                message = f"{token_id} is no token: the model has {self._vocab_size}"
                raise RequestError(400, message, param="stop_token_ids", code="invalid_value")

    def _check_echo(self, body: Mapping[str, object]) -> None:
        """On a CPU vLLM's layers for adapters fail at the logits of a prompt beside others'."""
        if self._has_adapters_on_cpu and body.get("echo") and body.get("logprobs") is not None:
            message = "echo with logprobs is not supported on a CPU by a stage with enable_lora"
            raise RequestError(400, message, param="echo", code="unsupported_parameter")


def blamed(place: Sequence[str | int], body: Mapping[str, object]) -> str | None:
    """The request's field that an error of vLLM's is about; it names media by their kind."""
    if not place:
        return None
    name = str(place[0])
    return name if name in ChatCompletionRequest.model_fields else asked(body)


def asked(body: Mapping[str, object]) -> str:
    """The field with what the model is to answer."""
    return "prompt" if "prompt" in body else "messages"


async def _chunks_of(result: Any, body: JsonMap) -> AsyncGenerator[Any, None]:
    """Yield vLLM's events as chunks; those without a token wait for the next; raises RequestError.

    So nothing of an answer has been sent when the engine ends it before its first token.
    """
    waiting: list[Any] = []
    has_begun = "messages" not in body
    try:
        async for line in result:
            text = line.removeprefix("data: ").strip()
            if text == "[DONE]":
                break
            chunk = json.loads(text)
            if "error" in chunk:
                told = chunk["error"]
                if told["message"] == LOST:
                    raise _lost(body, RequestError if has_begun else MediaLostError)
                code = int(told.get("code") or 500)
                raise failed(code, told["message"], told.get("param"), body)
            if chunk.get("usage") and (details := getattr(result, "details", None)) is not None:
                chunk["usage"].setdefault("prompt_tokens_details", details)
            has_begun = has_begun or not chunk["choices"] or any(map(_has_begun, chunk["choices"]))
            waiting.append(chunk)
            if has_begun:
                for one in waiting:
                    yield one
                waiting.clear()
        for one in waiting:
            yield one
    finally:
        await result.aclose()


def _lost(body: Mapping[str, object], kind: type[RequestError]) -> RequestError:
    """Blame the fields that may have left the engine no token, which ends an answer as a fault."""
    grammar = next((name for name in CONSTRAINING if name in body), None)
    forbidding = next((name for name in FORBIDDING if body.get(name)), None)
    if grammar is None or forbidding is None:
        return kind(500, LOST)
    message = f"{forbidding} leaves no token that {grammar} allows"
    return kind(400, message, param=forbidding, code="invalid_value")


def _has_begun(choice: Mapping[str, object]) -> bool:
    return bool(choice.get("token_ids") or choice.get("finish_reason"))


def must_call(body: Mapping[str, object]) -> bool:
    """Returns whether the answer has to be a call: of a named tool, or of any."""
    choice = body.get("tool_choice")
    return choice == "required" or isinstance(choice, Mapping)


def request_error(error: Exception, body: Mapping[str, object]) -> RequestError:
    """A refusal of vLLM's as ours."""
    message = str(error)
    cause = error.__cause__
    if cause is not None and str(cause) not in message:
        message = f"{message}: {cause}" if message else str(cause)
    parameter = getattr(error, "parameter", None) or _named(message)
    param = blamed([parameter] if parameter else [], body)
    message, part = with_part(message, body)
    if part is not None:
        return RequestError(400, message, param=part, code="invalid_value")
    if "tool-call-parser" in message:
        message = "tools are not supported: this stage has no tool_parser among its options"
        return RequestError(400, message, param="tools", code="unsupported_parameter")
    if any(reason in message for reason in PROCESSING):
        place = _processed(message, body)
        return RequestError(400, f"{place} {UNPROCESSED}.", param=place, code="invalid_value")
    if any(reason in message for reason in INPUT_REFUSALS):
        param = asked(body)
    if message.startswith("Grammar error"):
        given = ("tools",) if must_call(body) else CONSTRAINING
        param = next((name for name in given if name in body), param)
    if "maximum context length" in message or "max_model_len" in message:
        code = "context_length_exceeded"
        return RequestError(400, message, param=param or asked(body), code=code)
    return RequestError(400, message, param=param, code="invalid_value")


def _processed(message: str, body: Mapping[str, object]) -> str:
    """Return the place of what the processor raised over, if it had no other medium."""
    kinds = set(PROCESSED.findall(message))
    places = [place for kind in kinds for place in places_of(body, kind)]
    return places[0] if len(places) == 1 else asked(body)


def _named(message: str) -> str | None:
    """The field that a message of vLLM's ends with: an error in a stream has only its message."""
    found = re.search(r"\(parameter=(\w+)", message)
    return found[1] if found else None


def failed(code: int, message: str, param: str | None, body: Mapping[str, object]) -> RequestError:
    """vLLM's error response as ours."""
    if code == 400:
        return request_error(ValueError(message), body)
    return RequestError(code, message, param=param)

"""A text's tokens and the text of tokens, by vLLM's own serving class; its engine is not asked."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.body import Detokenize, Tokenize
from omnistage.stages.messages.to_gateway import Tokenized
from omnistage.stages.vllm.answers.chat import failed, request_error
from omnistage.stages.vllm.answers.rendering import Rendering
from omnistage.stages.vllm.compat import (
    CLIENT_ERRORS,
    AsyncLLM,
    BaseModelPath,
    DetokenizeRequest,
    OpenAIServingModels,
    ServingTokenization,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    accepted,
)
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import StagePorts

MAX_TOKENS = 1 << 18  # of one answer
PIECE_TOKENS = 1 << 14  # of one message: each fits a channel, whatever its tokens are
PIECE_CHARACTERS = 1 << 18


class Tokenization:
    """Answers for the tokenizer and the template of one engine."""

    def __init__(
        self,
        engine: AsyncLLM,
        ports: StagePorts,
        output: Literal["text", "embedding"] = "text",
    ) -> None:
        self._ports = ports
        self._output = output
        self._rendering = Rendering(engine, ports.options)
        self._tokenizer = engine.renderer.tokenizer
        self._vocab_size = engine.model_config.get_vocab_size()
        options = {
            **self._rendering.template,
            "engine_client": engine,
            "models": OpenAIServingModels(
                engine, [BaseModelPath(name=ports.model, model_path=ports.model)]
            ),
            "request_logger": None,
            "online_renderer": self._rendering.renderer,
        }
        self._serving = ServingTokenization(**accepted(ServingTokenization, options))

    async def serve(self, request_id: str, body: Tokenize | Detokenize) -> None:
        """Send the tokens or their text, in pieces; RequestError refuses it."""
        if isinstance(body, Tokenize):
            pieces = await self._tokens(body.fields)
        else:
            pieces = await self._text(body.tokens)
        for piece in pieces[:-1]:
            self._ports.send_output(request_id, piece)
            await self._ports.room.wait(request_id)
        self._ports.send_output(request_id, pieces[-1], last=True)

    async def ids_of(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        ids: list[int] = (await self._tokenize({"prompt": text})).tokens
        return ids

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raise RequestError for ids that are no token."""
        largest = max(token_ids, default=0)
        if largest >= self._vocab_size:
            message = f"{largest} is no token: the model has {self._vocab_size}"
            raise RequestError(400, message, param=param, code="invalid_value")

    async def _tokens(self, fields: JsonMap) -> list[Tokenized]:
        answer = await self._tokenize(fields)
        ids = answer.tokens
        if len(ids) > MAX_TOKENS:
            message = f"The text has {len(ids)} tokens; at most {MAX_TOKENS} are told."
            raise RequestError(400, message, param=_asked(fields), code="invalid_value")
        strs = [text or "" for text in answer.token_strs or ()]
        return [
            Tokenized(
                self._output,
                ids[start : start + PIECE_TOKENS],
                strs[start : start + PIECE_TOKENS] if fields.get("return_token_strs") else None,
            )
            for start in range(0, max(len(ids), 1), PIECE_TOKENS)
        ]

    async def _tokenize(self, fields: JsonMap) -> Any:
        """vLLM's answer; of messages with the template that their chat gets."""
        self._rendering.check(fields)
        try:
            if "prompt" in fields:
                asked = TokenizeCompletionRequest(**fields)
            else:
                messages = [self._rendering.message(one) for one in fields["messages"]]
                asked = TokenizeChatRequest(**{**fields, "messages": messages})
            answer = await self._serving.create_tokenize(asked, None)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise RequestError(400, message, param=_asked(fields), code="invalid_value") from error
        except CLIENT_ERRORS as error:
            raise request_error(error, fields) from error
        if hasattr(answer, "error"):
            told = answer.error
            raise failed(int(told.code), told.message, told.param, fields)
        return answer

    async def _text(self, token_ids: list[int]) -> list[Tokenized]:
        self.check_ids(token_ids, "tokens")
        answer = await self._serving.create_detokenize(DetokenizeRequest(tokens=token_ids), None)
        text = answer.prompt
        return [
            Tokenized(self._output, text=text[start : start + PIECE_CHARACTERS])
            for start in range(0, max(len(text), 1), PIECE_CHARACTERS)
        ]


def _asked(fields: Mapping[str, object]) -> str:
    return "prompt" if "prompt" in fields else "messages"

"""A stage that is one embedding model in vLLM: what texts mean, as vectors."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.body import Detokenize, Embed, Tokenize
from omnistage.stages.messages.to_gateway import Embedding, Ready
from omnistage.stages.vllm.answers.chat import request_error
from omnistage.stages.vllm.answers.tokenization import Tokenization
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.compat import CLIENT_ERRORS, AsyncLLM, PoolingParams
from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.engine.warm_up import warm_up_lengths
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts

TASK = "embed"
NO_WEIGHTS = "whether vLLM reads the weights of an embedding model again was not tried"


class EmbeddingStage(EngineStage):
    """One AsyncLLM with vLLM's runner of pooling models."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports

    async def start(self) -> Ready:
        """Load, and embed a text, and one of each length that a GPU compiles for."""
        ports = self._ports
        options = {"runner": "pooling", **ports.engine}
        self._engine = make_engine(AsyncLLM, ports.model, options, None, stage=ports.name)
        self._tokenization = Tokenization(self._engine, ports, "embedding")
        self._max_length = self._engine.model_config.max_model_len
        for number, length in enumerate((2, *warm_up_lengths(self._engine.vllm_config))):
            await self._vector(f"warm-up-{number}", [number] * length, None, None)
        await self._engine.reset_prefix_cache()
        self._control = EngineControl(self._engine, NO_WEIGHTS, stage=ports.name)
        return Ready(max_model_len=self._max_length, commands=self._control.commands)

    async def serve(self, opened: Opened) -> None:
        """Embed all inputs at once; each leaves when it is done."""
        request_id, request = opened.id, opened.request
        body = request.body
        if isinstance(body, Tokenize | Detokenize):
            await self._tokenization.serve(request_id, body)
            return
        assert isinstance(body, Embed), "an embedding stage gets nothing else"
        inputs = await self._ids(body.inputs)
        self._ports.mark(request_id, "rendered")
        headers = trace_headers(request, self._ports.name)
        dimensions = body.dimensions
        embedding = [
            asyncio.create_task(
                self._embed(f"{request_id}-{index}", index, ids, dimensions, headers)
            )
            for index, ids in enumerate(inputs)
        ]
        try:
            await self._send_all(request_id, embedding)
        finally:
            for task in embedding:
                task.cancel()
            await asyncio.gather(*embedding, return_exceptions=True)

    async def _send_all(
        self, request_id: str, embedding: Sequence[asyncio.Task[tuple[Embedding, Tensor]]]
    ) -> None:
        for number, done in enumerate(asyncio.as_completed(embedding), start=1):
            message, vector = await done
            last = number == len(embedding)
            self._ports.send_output(request_id, message, {"vector": vector}, last=last)
            if not last:
                await self._ports.room.wait(request_id)

    async def _ids(self, inputs: Sequence[str | list[int]]) -> list[list[int]]:
        """The tokens of each input; RequestError for one that the model cannot take."""
        finding = (self._ids_of(given, f"input[{index}]") for index, given in enumerate(inputs))
        return await asyncio.gather(*finding)

    async def _ids_of(self, given: str | list[int], place: str) -> list[int]:
        if isinstance(given, str):
            ids = await self._tokenization.ids_of(given)
        else:
            self._tokenization.check_ids(given, place)
            ids = given
        if not ids:
            raise RequestError(400, f"{place} has no token.", param=place, code="invalid_value")
        if len(ids) > self._max_length:
            message = f"{place} has {len(ids)} tokens; the model takes {self._max_length}."
            raise RequestError(400, message, param=place, code="context_length_exceeded")
        return ids

    async def _embed(
        self,
        request_id: str,
        index: int,
        token_ids: list[int],
        dimensions: int | None,
        headers: Mapping[str, str] | None,
    ) -> tuple[Embedding, Tensor]:
        try:
            vector = await self._vector(request_id, token_ids, dimensions, headers)
        except CLIENT_ERRORS as error:
            refusal = request_error(error, {})
            param = "input" if dimensions is None else "dimensions"
            raise RequestError(400, refusal.message, param=param, code="invalid_value") from error
        return Embedding(index, len(token_ids)), Tensor.from_numpy(vector)

    async def _vector(
        self,
        request_id: str,
        token_ids: list[int],
        dimensions: int | None,
        headers: Mapping[str, str] | None,
    ) -> Any:
        params = PoolingParams(task=TASK, dimensions=dimensions)
        prompt = {"prompt_token_ids": token_ids}
        encoding = self._engine.encode(prompt, params, request_id, trace_headers=headers)
        async for output in encoding:
            vector = output.outputs.data
        return vector.float().cpu().numpy().astype(np.float32)

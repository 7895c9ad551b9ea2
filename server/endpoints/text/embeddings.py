"""POST /v1/embeddings: texts or tokens in, a vector of each out."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.answers import Embeddings
from omnistage.server.endpoints.examples import embedding_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.request import HttpCaller, JsonRoute, in_thread
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.tasks.embeddings import EmbeddingRequest, RunningEmbeddings, run_embeddings


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/embeddings."""
    router = APIRouter(route_class=JsonRoute)
    body = json_examples(embedding_examples(gateway.runtime.graph))
    about = described("Create embeddings", Embeddings, body=body)
    router.post("/v1/embeddings", **about)(EmbeddingAnswers(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class EmbeddingAnswers:
    """Answers requests for vectors by running them through the graph."""

    gateway: Gateway

    async def create(self, asked: EmbeddingRequest, http: HttpRequest) -> Response:
        """The vector of each input, once all are there."""
        running = await run_embeddings(self.gateway, asked, HttpCaller(http))
        making = self._collect(running, asked, http)
        return await whole_answer(http, running.request.id, making, warning_headers(asked.unknown))

    async def _collect(
        self, running: RunningEmbeddings, asked: EmbeddingRequest, http: HttpRequest
    ) -> bytes:
        """The answer as JSON, which is made in a thread: it may have millions of numbers."""
        vectors, num_tokens = await running.vectors()
        model, is_base64 = self.gateway.runtime.graph.served_name, asked.encoding_format == "base64"
        return await in_thread(http, lambda: answer_of(vectors, is_base64, model, num_tokens))


def answer_of(vectors: Sequence[Tensor], is_base64: bool, model: str, num_tokens: int) -> bytes:
    """The whole answer as JSON."""
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    items = b",".join(
        msgspec.json.encode(
            {"object": "embedding", "index": index, "embedding": _numbers(vector, is_base64)}
        )
        for index, vector in enumerate(vectors)
    )
    rest = msgspec.json.encode({"model": model, "usage": usage})
    return b'{"object":"list","data":[' + items + b"]," + rest[1:]


def _numbers(vector: Tensor, is_base64: bool) -> list[float] | str:
    if is_base64:  # little endian, as OpenAI's
        return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = vector.numpy().tolist()
    return numbers

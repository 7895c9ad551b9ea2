"""POST /v1/embeddings: texts or tokens in, a vector of each out."""

import base64
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.connectors.chunk import Tensor
from omnistage.server.endpoints.answers import Embeddings
from omnistage.server.endpoints.examples import embedding_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.beside_loop import in_thread
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.served import check_makes, check_model
from omnistage.server.http.state import held
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.runtime.request import EmbeddingOutput, Request
from omnistage.server.runtime.ticket import Ticket
from omnistage.server.tasks.embedding_fields import EmbeddingRequest, inputs_of

OUTPUT = "embedding"


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
        request = self._request(asked)
        ticket = held(http, self.gateway.runtime.flights.admit(request.outputs))
        making = self._collect(request, ticket, asked, http)
        return await whole_answer(http, request.id, making, warning_headers(asked.unknown))

    def _request(self, asked: EmbeddingRequest) -> Request:
        graph = self.gateway.runtime.graph
        check_model(asked.model, graph.served_names)
        check_makes(OUTPUT, graph.outputs, "embeddings")
        asked.check()
        body: dict[str, Any] = {"input": inputs_of(asked.input)}
        if asked.dimensions is not None:
            body["dimensions"] = asked.dimensions
        return Request(f"embd-{uuid4().hex}", (OUTPUT,), body)

    async def _collect(
        self, request: Request, ticket: Ticket, asked: EmbeddingRequest, http: HttpRequest
    ) -> bytes:
        """The answer as JSON, which is made beside the event loop: it may have millions of numbers.

        Inputs come back in the order in which the engine has done with them.
        """
        vectors: list[Tensor | None] = [None] * len(request.body["input"])
        num_tokens = 0
        async with aclosing(ticket.run(request)) as outputs:
            async for output in outputs:
                assert isinstance(output, EmbeddingOutput)
                vectors[output.index] = output.vector
                num_tokens += output.num_tokens
        found = [vector for vector in vectors if vector is not None]
        assert len(found) == len(vectors), "the stage left an input out"
        model, is_base64 = self.gateway.runtime.graph.served_name, asked.encoding_format == "base64"
        return await in_thread(http, lambda: answer_of(found, is_base64, model, num_tokens))


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

"""Texts or tokens in, a vector of each out."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

from pydantic import Field, WithJsonSchema, field_validator

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.fields import Refused, RequestFields
from omnistage.server.common.served import check_makes, check_model
from omnistage.server.runtime.request import EmbeddingOutput, GraphRequest, Outputs
from omnistage.server.tasks.service import Caller, Service, send
from omnistage.stage_configs.declared.sampling import Count
from omnistage.stages.messages.body import Embed
from omnistage.stages.messages.to_stage import Request

OUTPUT = "embedding"
MAX_INPUTS = 2048  # OpenAI's
MAX_TOKENS = 300_000  # OpenAI's, of all inputs that come as tokens
MAX_CHARACTERS = 4 << 20  # of all inputs that come as text
INTEGER = {"type": "integer", "minimum": 0, "exclusiveMaximum": 1 << 31}
TEXT = {"type": "string", "minLength": 1}
IDS = {"type": "array", "minItems": 1, "items": INTEGER}
MANY = {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS}
INPUT = {"anyOf": [TEXT, IDS, {**MANY, "items": TEXT}, {**MANY, "items": IDS}]}
PROBLEM = (
    f"must be a text, a list of token ids, or a list of 1 to {MAX_INPUTS} of one of these, "
    "none of them empty"
)


class EmbeddingRequest(RequestFields):
    """The body of POST /v1/embeddings."""

    ignored = frozenset({"user"})
    # vLLM's: what would change the vectors, or their shape in the answer.
    refused: ClassVar[Refused] = {
        "add_special_tokens": (True,),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
        "messages": (),
        "normalize": (),
        "padding_side": (),
        "priority": (0,),
        "truncate_prompt_tokens": (),
        "truncation_side": (),
        "use_activation": (),
    }

    input: Annotated[str | list[Any], WithJsonSchema(INPUT)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    padding: Literal["do_not_pad"] | None = None  # vLLM's; it fills no batch up
    dimensions: Annotated[Count, Field(ge=1, le=1 << 20)] | None = None

    @field_validator("input", mode="plain")
    @classmethod
    def _inputs(cls, value: Any) -> Any:
        inputs = inputs_of(value)
        if not 1 <= len(inputs) <= MAX_INPUTS or not (
            all(isinstance(one, str) and one for one in inputs) or all(map(_is_ids, inputs))
        ):
            raise ValueError(PROBLEM)
        most, what = (MAX_CHARACTERS, "characters")
        if not isinstance(inputs[0], str):
            most, what = (MAX_TOKENS, "tokens")
        count = sum(map(len, inputs))
        if count > most:
            raise ValueError(f"has {count} {what} in all; at most {most}")
        return value


def inputs_of(given: Any) -> list[Any]:
    """One input or several, as a list."""
    is_several = isinstance(given, list) and not (given and type(given[0]) is int)
    return given if is_several else [given]


def _is_ids(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(one) is int and 0 <= one < 1 << 31 for one in value)
    )


@dataclass(frozen=True, slots=True)
class RunningEmbeddings:
    """Inputs that were sent to be embedded."""

    request: GraphRequest
    num_inputs: int
    outputs: Outputs

    async def vectors(self) -> tuple[Sequence[Tensor], int]:
        """Collect the vectors, float32 [size] each, in order, and count the tokens; ApiError.

        Inputs come back in the order in which the engine has done with them.
        """
        vectors: list[Tensor | None] = [None] * self.num_inputs
        num_tokens = 0
        async with aclosing(self.outputs) as outputs:
            async for output in outputs:
                assert isinstance(output, EmbeddingOutput)
                vectors[output.index] = output.vector
                num_tokens += output.num_tokens
        found = [vector for vector in vectors if vector is not None]
        assert len(found) == len(vectors), "the stage left an input out"
        return found, num_tokens


async def run_embeddings(
    service: Service, fields: EmbeddingRequest, caller: Caller
) -> RunningEmbeddings:
    """Check the inputs and send them; raises ApiError."""
    graph = service.runtime.graph
    check_model(fields.model, graph.served_names)
    check_makes(OUTPUT, graph.outputs, "embeddings")
    fields.check()
    inputs = inputs_of(fields.input)
    message = Request(Embed(inputs, fields.dimensions), [OUTPUT])
    request = GraphRequest(f"embd-{uuid4().hex}", message)
    return RunningEmbeddings(request, len(inputs), (await send(service, request, caller))[1])

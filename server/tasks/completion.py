"""Texts that go on: from the fields of a body to what the stages make."""

from dataclasses import dataclass
from uuid import uuid4

from omnistage.server.common.served import adapter_of, check_makes, check_model
from omnistage.server.runtime.request import GraphRequest, Outputs
from omnistage.server.tasks.chat.completion_fields import (
    COMPLETION_DONE,
    DEFAULT_TOKENS,
    CompletionRequest,
)
from omnistage.server.tasks.chat.schema import StreamOptions
from omnistage.server.tasks.chat.stage_params import entry_defaults
from omnistage.server.tasks.service import Caller, Service, send
from omnistage.stage_configs.declared.sampling import with_defaults
from omnistage.stages.messages.body import Prompt
from omnistage.stages.messages.to_stage import Request

# Read here; the entry stage's body has the other fields that are done.
OWN_FIELDS = frozenset({"model", "best_of", "stream", "stream_options"})


@dataclass(frozen=True, slots=True)
class RunningCompletion:
    """Prompts that were sent to the entry stage; closing `outputs` cancels them."""

    request: GraphRequest
    model: str  # its name in answers
    outputs: Outputs


async def run_completion(
    service: Service, fields: CompletionRequest, caller: Caller
) -> RunningCompletion:
    """Check prompts and send them; raises ApiError."""
    request = await caller.compute(lambda: _request(service, fields))
    request, outputs = await send(service, request, caller)
    model = request.message.fields.get("model", service.runtime.graph.served_name)
    return RunningCompletion(request, model, outputs)


def _request(service: Service, fields: CompletionRequest) -> GraphRequest:
    graph = service.runtime.graph
    adapters = [lora.name for lora in service.runtime.fleet.loras]
    check_model(fields.model, graph.served_names, adapters)
    check_makes("text", graph.outputs, "text")
    fields.check()
    given = fields.model_dump(exclude_none=True, include=set(COMPLETION_DONE - OWN_FIELDS))
    defaults = {"max_tokens": DEFAULT_TOKENS, **entry_defaults(graph)}
    options = fields.stream_options or StreamOptions()
    sent = {
        **with_defaults(defaults, given),
        **adapter_of(fields.model, graph.served_names),
        **({"stream_options": options.of_stage()} if fields.stream else {}),
    }
    return GraphRequest(f"cmpl-{uuid4().hex}", Request(Prompt(sent), ["text"], seed=fields.seed))

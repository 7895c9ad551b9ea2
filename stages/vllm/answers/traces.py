"""Headers of a request's trace for vLLM, so that its own spans lie below the stage's."""

from starlette.requests import Request as HttpRequest

from omnistage.stages.messages.to_stage import Request
from omnistage.stages.messages.trace_context import HEADER, TraceContext


def trace_headers(request: Request, stage: str) -> dict[str, str] | None:
    """Returns the headers that AsyncLLM takes; None for a request that is not to be recorded."""
    context = TraceContext.parse(request.traceparent)
    return None if context is None else {HEADER: context.named(stage).header}


def as_http(headers: dict[str, str] | None) -> HttpRequest | None:
    """The HTTP request in which vLLM's serving classes look for the same headers."""
    if headers is None:
        return None
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HttpRequest({"type": "http", "headers": encoded})

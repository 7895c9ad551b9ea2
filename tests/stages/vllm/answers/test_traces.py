"""What vLLM is told of a request's trace."""

from omnistage.stages.messages.to_stage import Request
from omnistage.stages.messages.trace_context import TraceContext
from omnistage.stages.vllm.answers.traces import as_http, trace_headers

CONTEXT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def test_an_engine_s_spans_lie_below_its_stage_s() -> None:
    request = Request(None, ["text"], traceparent=CONTEXT.header)
    headers = trace_headers(request, "thinker")
    assert headers == {"traceparent": CONTEXT.named("thinker").header}
    assert trace_headers(request, "talker") != headers


def test_a_request_that_is_not_recorded_has_no_headers() -> None:
    assert trace_headers(Request(None, ["text"]), "thinker") is None
    assert as_http(None) is None


async def test_vllm_s_serving_classes_find_them_in_a_request() -> None:
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat

    headers = {"traceparent": CONTEXT.header}
    asked = as_http(headers)
    assert asked is not None
    serving = OpenAIServingChat.__new__(OpenAIServingChat)
    assert await serving._get_trace_headers(asked.headers) == headers

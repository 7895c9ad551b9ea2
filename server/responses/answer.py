"""A response as an object: in the events of its stream, in a whole answer, and in the store."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from omnistage.server.common.errors import ApiError
from omnistage.server.responses.schema import ResponseRequest, format_of
from omnistage.stage_configs.json_types import Json, JsonMap

# Why a chat's choice ended, where that is no end: what a response says of it.
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that a response has from its first event to its last."""

    asked: ResponseRequest
    model: str
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    created_at: int = field(default_factory=lambda: int(time.time()))

    def response(self, status: str, output: Sequence[Json], **more: object) -> Json:
        """The object as it is now."""
        asked = self.asked
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "metadata": asked.metadata or {},
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": _reasoning(asked),
            "service_tier": "default",
            "store": asked.is_kept,
            "temperature": asked.temperature,
            "text": {"format": _format(asked)},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [_tool(tool) for tool in asked.tools or ()],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": asked.truncation or "disabled",
            **more,
        }

    def ended(self, output: Sequence[Json], finish_reason: str, usage: JsonMap) -> Json:
        """The whole response of a chat that ended for this reason."""
        reason = INCOMPLETE.get(finish_reason)
        told = usage_of(usage)
        if reason is None:
            return self.response("completed", output, usage=told)
        details = {"reason": reason}
        return self.response("incomplete", output, usage=told, incomplete_details=details)

    def failed(self, output: Sequence[Json], error: ApiError) -> Json:
        """The response of a chat that failed after it had begun."""
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        told = {"code": code, "message": error.message}
        return self.response("failed", output, error=told)


def usage_of(usage: JsonMap) -> Json:
    """A chat's usage in a response's words."""
    details_in, details_out = usage["prompt_tokens_details"], usage["completion_tokens_details"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": details_in["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": details_out["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }


def _reasoning(asked: ResponseRequest) -> Json:
    options = asked.reasoning
    if options is None:
        return {"effort": None, "summary": None}
    return {"effort": options.effort, "summary": options.summary}


def _format(asked: ResponseRequest) -> Json:
    given = format_of(asked)
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    keys = ("name", "description", "schema", "strict")
    return {"type": "json_schema", **{key: given[key] for key in keys if key in given}}


def _tool(tool: Mapping[str, object]) -> Json:
    """A function with the keys that OpenAI's always has; another tool as it was given."""
    if tool.get("type") != "function":
        return dict(tool)
    keys = ("name", "description", "parameters", "strict")
    return {"type": "function", **{key: tool.get(key) for key in keys}}

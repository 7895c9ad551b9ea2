"""One question at every endpoint that answers with text or calls, whole and streamed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
DOORS = [(path, stream) for path in (CHAT, COMPLETIONS, RESPONSES) for stream in (False, True)]
CALLING = [(path, stream) for path, stream in DOORS if path != COMPLETIONS]
ONE_SHOT = httpx.Limits(max_keepalive_connections=0)
# JSON may have any amount of white space, and a tiny model likes it; a byte is a token.
NO_SPACE = {str(byte): -100 for byte in b"\t\n\r "}


@dataclass
class Answered:
    """What came, whatever its shape: the words, and calls as names and arguments."""

    status: int
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    error: Mapping[str, Any] | None = None


def ask(url: str, path: str, stream: bool, max_tokens: int = 200, **fields: Any) -> Answered:
    """Ask with a chat's fields, which are said as the endpoint has them."""
    body = {"temperature": 1, "seed": 7, "logit_bias": NO_SPACE, "stream": stream, **fields}
    if path == CHAT:
        body |= {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": max_tokens}
    elif path == COMPLETIONS:
        body |= {"prompt": "Hi", "max_tokens": max_tokens}
    else:
        body = {**_of_response(body), "input": "Hi", "max_output_tokens": max_tokens}
    with httpx.Client(base_url=url, timeout=600, limits=ONE_SHOT) as client:
        response = client.post(path, json=body)
    if response.status_code != 200:
        return Answered(response.status_code, error=response.json()["error"])
    read = _response if path == RESPONSES else _choices
    return read(_events(response.text) if stream else [response.json()])


def _of_response(fields: dict[str, Any]) -> dict[str, Any]:
    fields = dict(fields)
    described = fields.pop("response_format", None)
    if described is not None:
        fields["text"] = {"format": {"type": "json_schema", **described["json_schema"]}}
    if "tools" in fields:
        fields["tools"] = [{"type": "function", **tool["function"]} for tool in fields["tools"]]
    choice = fields.get("tool_choice")
    if isinstance(choice, Mapping):
        fields["tool_choice"] = {"type": "function", **choice["function"]}
    return fields


def _events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _choices(chunks: list[Any]) -> Answered:
    answered = Answered(200)
    calls: dict[int, tuple[str, str]] = {}
    for chunk in chunks:
        if chunk.get("error"):
            return Answered(200, error=chunk["error"])
        for choice in chunk["choices"]:
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            answered.text += said.get("content") or ""
            for number, call in enumerate(said.get("tool_calls") or ()):
                name, arguments = calls.get(call.get("index", number), ("", ""))
                function = call["function"]
                calls[call.get("index", number)] = (
                    name + (function.get("name") or ""),
                    arguments + (function.get("arguments") or ""),
                )
    answered.calls = [calls[index] for index in sorted(calls)]
    return answered


def _response(events: list[Any]) -> Answered:
    last = events[-1].get("response", events[-1])
    if last.get("error"):
        return Answered(200, error=last["error"])
    answered = Answered(200)
    for item in last["output"]:
        if item["type"] == "function_call":
            answered.calls.append((item["name"], item["arguments"]))
        elif item["type"] == "message":
            answered.text += "".join(part["text"] for part in item["content"])
    return answered

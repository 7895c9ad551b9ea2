"""Requests for responses, and their events."""

from typing import Any

import httpx
from support.api.openai_spec import assert_valid
from support.fakes.stages import WORDS
from support.gateway.serving import MODEL

URL = "/v1/responses"
TEXT = "".join(WORDS)
Event = dict[str, Any]


def body_of(script: str = "words", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": script, **more}


def whole(client: httpx.Client, script: str = "words", **more: Any) -> Event:
    answer = client.post(URL, json=body_of(script, **more))
    assert answer.status_code == 200, answer.text
    assert_valid(answer.json(), "Response", "responses")
    response: Event = answer.json()
    return response


def refused(client: httpx.Client, **fields: Any) -> tuple[str | None, str | None]:
    response = client.post(URL, json=body_of(**fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert_valid(response.json(), "ErrorResponse", "responses")
    assert error["param"] is None or error["param"] in error["message"] or error["code"]
    return error["param"], error["code"]

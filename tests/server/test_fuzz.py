"""Mutated bodies: whatever comes, the answer is an answer or a refusal, never a failure of ours."""

import httpx
from hypothesis import HealthCheck, given, settings
from support.fuzz import BODIES, PROMPTS, bodies

fuzzed = settings(
    max_examples=1000,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@fuzzed
@given(data=bodies(BODIES))
def test_no_body_makes_the_gateway_fail(data: bytes, client: httpx.Client) -> None:
    check_answered(client, "/v1/chat/completions", data)


@fuzzed
@given(data=bodies(PROMPTS))
def test_no_prompt_makes_the_gateway_fail(data: bytes, client: httpx.Client) -> None:
    check_answered(client, "/v1/completions", data)


def check_answered(client: httpx.Client, url: str, data: bytes) -> None:
    """An answer without an error in it, or a refusal with all that OpenAI's have."""
    response = client.post(url, content=data, headers={"content-type": "application/json"})
    assert response.status_code < 500, (data, response.text)
    if response.status_code == 200:
        assert b'"error"' not in response.content, data
    else:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert isinstance(error["code"], str)

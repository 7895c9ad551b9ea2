"""Mutated bodies: whatever comes, the answer is an answer or a refusal, never a failure of ours."""

import httpx
from hypothesis import given
from support.hostile.fuzz import BODIES, PROMPTS, assert_answered, bodies, fuzzed, num_cases

COUNT = num_cases(400, 1000)


@fuzzed(COUNT)
@given(data=bodies(BODIES))
def test_no_body_makes_the_gateway_fail(data: bytes, client: httpx.Client) -> None:
    assert_answered(post(client, "/v1/chat/completions", data), data)


@fuzzed(COUNT)
@given(data=bodies(PROMPTS))
def test_no_prompt_makes_the_gateway_fail(data: bytes, client: httpx.Client) -> None:
    assert_answered(post(client, "/v1/completions", data), data)


def post(client: httpx.Client, url: str, data: bytes) -> httpx.Response:
    return client.post(url, content=data, headers={"content-type": "application/json"})

"""Strange requests: a clear refusal each, before any stage sees them."""

import httpx
import pytest
from support.gateway import serving as gateway
from support.hostile.bad_input import REFUSED_BY_STAGES, REFUSED_BY_THE_GATEWAY
from support.hostile.bad_parts import MODEL, Bad


@pytest.mark.parametrize("bad", REFUSED_BY_THE_GATEWAY, ids=lambda bad: bad.name)
def test_bad_input_is_refused_by_name(bad: Bad, client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    is_large = len(bad.body) > 1 << 20
    body = bad.body if is_large else bad.body.replace(MODEL.encode(), gateway.MODEL.encode())
    response = client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == bad.status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert bad.param is None or error["param"] == bad.param, error


def test_few_are_left_to_stages() -> None:
    assert len(REFUSED_BY_STAGES) == 10
    assert len(REFUSED_BY_THE_GATEWAY) > 100

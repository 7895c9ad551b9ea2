"""What real stages say of themselves is what /openapi.json says."""

import httpx
import pytest
from support.api.described import assert_described
from support.api.prompts import text
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine


def test_health_of_real_stages_matches_its_schema(server: TinyServer) -> None:
    asked = server.body([{"role": "user", "content": [text("Hello")]}])
    with httpx.Client(base_url=server.url, headers={"Connection": "close"}) as client:
        before = client.get("/health")
        assert_described(client, before)
        answer = client.post("/v1/chat/completions", json=asked, timeout=600)
        assert answer.status_code == 200
        after = client.get("/health")
        assert_described(client, after)
    assert after.status_code == 200
    for name, stage in after.json()["stages"].items():
        assert stage["state"] == "ready"
        assert stage["requests_total"] >= before.json()["stages"][name]["requests_total"]
        assert stage["held"]

"""Jobs that make videos, over a fake stage."""

from collections.abc import Callable
from typing import Any, Literal

import httpx
from support.api.doors import ONE_SHOT
from support.gateway.serving import RunningGateway
from support.waiting import wait_until

URL = "/v1/videos"
SIZE: Literal["1280x720"] = "1280x720"  # one of those that OpenAI's specification names


def client_of(gateway: RunningGateway, key: str = "none") -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=gateway.url, timeout=600, limits=ONE_SHOT, headers=headers)


def create(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post(URL, json={"prompt": "a cat", **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def job_of(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    answer = client.get(f"{URL}/{job['id']}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def when(client: httpx.Client, job: dict[str, Any], is_so: Callable[[Any], Any]) -> dict[str, Any]:
    wait_until(lambda: is_so(job_of(client, job)))
    return job_of(client, job)


def done(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    return when(client, job, lambda now: now["status"] in ("completed", "failed"))

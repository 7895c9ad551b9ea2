"""Waiting for what the stages of a server have counted, which they report once a second."""

import re
import time
from typing import Any

import httpx
from support.servers.server import VERIFY, TinyServer
from support.waiting import PATIENCE_S, wait_until

AGE = re.compile(r"^omnistage_stage_metrics_age_seconds(\{.*\}) (\S+)$", re.MULTILINE)
NUM_SNAPSHOTS = 2  # the first may have been measured before the word that it comes behind
INTERVAL_S = 0.2
MADE_IDS, MADE_STEPS = "vllm:generation_tokens_total", "omnistage_denoising_batch_requests_count"


def reported_page(server: TinyServer) -> str:
    """Return /metrics once no stage has a request, and each has measured itself since then.

    What a stage measures comes to the gateway behind its word that it has no request left.
    """
    wait_until(lambda: not any(stage["running"] for stage in server.health().values()))
    deadline = time.monotonic() + PATIENCE_S
    seen_at: dict[str, float] = {}
    num_new: dict[str, int] = {}
    while True:
        began = time.monotonic()
        page = httpx.get(f"{server.url}/metrics", timeout=600, verify=VERIFY).text
        ended = time.monotonic()
        for stage, age in AGE.findall(page):
            is_new = began - float(age) > seen_at.get(stage, began)
            num_new[stage] = num_new.get(stage, 0) + is_new
            seen_at[stage] = ended - float(age)
        if num_new and min(num_new.values()) >= NUM_SNAPSHOTS:
            return page
        assert time.monotonic() < deadline, num_new
        time.sleep(INTERVAL_S)


def health_by_now(server: TinyServer) -> dict[str, Any]:
    """Return /health of stages that have told all that they did, once none has a request."""
    reported_page(server)
    return server.health()


def counted(server: TinyServer, stage: str, counter: str) -> float:
    """Return what a counter of a stage was at when it was reported last."""
    page = httpx.get(f"{server.url}/metrics", verify=VERIFY).text if counter else ""
    return _value(page, stage, counter)


def counted_by_now(server: TinyServer, stage: str, counter: str) -> float:
    """Return what a counter of a stage is at, once no stage has a request."""
    return _value(reported_page(server), stage, counter) if counter else 0


def _value(page: str, stage: str, counter: str) -> float:
    of_stage = rf'^{re.escape(counter)}{{[^}}]*stage="{stage}"[^}}]*}} (\S+)$'
    return sum(map(float, re.findall(of_stage, page, re.MULTILINE)))

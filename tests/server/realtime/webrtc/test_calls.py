"""The gateway's side of calls: the event loop waits for no process."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("aiortc", reason="the extra omnistage[webrtc] is not installed")

from omnistage.server.options.gateway import CallNetwork
from omnistage.server.realtime.webrtc.calls import WebRtcCalls

URL = "ws://127.0.0.1:1/v1/realtime"
MAX_SETTINGS = 500 << 10  # characters: far more than a pipe holds
# Takes its order once it is told to, or ends if that does not come.
SLOW_PROCESS = """
import json, select, sys
told, _, _ = select.select([int(sys.argv[1])], [], [], 60)
if told:
    order = json.loads(sys.stdin.readline())
    size = len(order["session"]["instructions"])
    print(json.dumps({"call_id": order["call_id"], "sdp": f"v=0 {size}"}), flush=True)
    sys.stdin.read()
"""


async def test_the_loop_does_not_wait_for_a_process_that_takes_its_orders_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, tell = os.pipe()
    started: list[subprocess.Popen[bytes]] = []

    def slow(args: object, **options: Any) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", SLOW_PROCESS, str(heard)]
        started.append(popen(command, pass_fds=(heard,), **options))
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", slow)
    calls = WebRtcCalls(CallNetwork())
    settings = {"instructions": "x" * MAX_SETTINGS}
    try:
        opening = asyncio.create_task(calls.open("v=0", URL, {}, settings, None))
        await asyncio.sleep(0)  # it has sent its order, of which nothing is read yet
        assert not opening.done()
        os.write(tell, b"!")
        _, answer = await opening
        assert answer == f"v=0 {MAX_SETTINGS}"
    finally:
        os.close(tell)
        os.close(heard)
        for process in started:
            process.kill()
            process.wait()

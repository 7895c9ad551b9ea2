"""Calls by WebRTC, by a client of aiortc's: offers, audio both ways, interruptions, ends."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.waiting import until, wait_until

pytest.importorskip("aiortc", reason="the extra omnistage[webrtc] is not installed")

from support.realtime.webrtc import PATH, Caller, calling

from omnistage.server.http.access.keys import Keys
from omnistage.server.realtime.webrtc.calls import MODULE as BRIDGE
from omnistage.server.realtime.webrtc.tracks import LATE_S

FRAMES_A_SECOND = 50
SESSION: dict[str, Any] = {"type": "realtime", "model": MODEL, "instructions": "Be short."}

pytestmark = pytest.mark.usefixtures("by_loudness")


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: RunningGateway) -> Iterator[None]:
    yield
    gateway.wait_until_idle()


async def test_a_call_speaks_both_ways_and_is_interrupted(gateway: RunningGateway) -> None:
    async with calling(gateway.url, SESSION) as call:
        created = await call.until("session.created")
        assert created["session"]["instructions"] == "Be short."
        assert created["session"]["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        # What the client says becomes a turn, and is answered.
        await asyncio.sleep(0.5)
        call.microphone.speaks = True
        started = await call.until("input_audio_buffer.speech_started")
        await asyncio.sleep(0.4)
        call.microphone.speaks = False
        committed = await call.until("input_audio_buffer.committed")
        assert committed["item_id"] == started["item_id"]
        stopped = await call.until("output_audio_buffer.stopped")
        (response,) = call.responses  # which may be done before its audio is heard
        assert response["status"] == "completed"
        assert stopped["response_id"] == response["id"]
        assert call.kinds.index("output_audio_buffer.started") < len(call.kinds) - 1
        # Somebody speaks into a long answer: its audio stops, and it keeps what was heard.
        await call.write("endless")
        num_before, began = call.num_heard, time.monotonic()
        call.say("response.create")
        begun = await call.until("output_audio_buffer.started")
        await until(lambda: call.num_heard >= num_before + FRAMES_A_SECOND)
        call.microphone.speaks = True
        await call.until("input_audio_buffer.speech_started")
        cleared = await call.until("output_audio_buffer.cleared")
        assert cleared["response_id"] == begun["response_id"]
        truncated = await call.until("conversation.item.truncated")
        assert 500 < truncated["audio_end_ms"] < 1000 * (time.monotonic() - began) + 500
        call.microphone.speaks = False
        assert max(call.levels[5:]) > 0
        assert "response.output_audio.delta" not in call.kinds
        assert [one["status"] for one in call.responses] == ["completed", "cancelled"]


async def test_audio_comes_in_real_time_however_fast_it_is_made(gateway: RunningGateway) -> None:
    async with calling(gateway.url, SESSION) as call:
        await call.until("session.created")
        await call.write("endless")
        before, began = call.num_heard, time.monotonic()
        call.say("response.create")
        await call.until("output_audio_buffer.started")
        await until(lambda: call.num_heard >= before + 2 * FRAMES_A_SECOND)
        # Of these two seconds, the bridge may send what it was late with at once.
        assert time.monotonic() - began > 2 - LATE_S - 0.3
        call.say("response.cancel")
        await call.until("response.done")
        assert "output_audio_buffer.stopped" not in call.kinds  # what was made is still heard
        call.say("output_audio_buffer.clear")
        await call.until("output_audio_buffer.cleared")
        await call.until("conversation.item.truncated")


async def test_a_plain_offer_has_the_defaults_and_formats_are_the_tracks(
    gateway: RunningGateway,
) -> None:
    async with calling(gateway.url) as call:
        created = await call.until("session.created")
        assert created["session"]["model"] == MODEL
        formats = {"format": {"type": "audio/pcmu"}}
        audio = {"input": dict(formats), "output": {**formats, "voice": "ethan"}}
        call.say("session.update", session={"type": "realtime", "audio": audio})
        updated = (await call.until("session.updated"))["session"]["audio"]
        assert updated["output"]["voice"] == "ethan"
        assert updated["input"]["format"]["type"] == updated["output"]["format"]["type"]
        assert updated["output"]["format"]["type"] == "audio/pcm"
        call.channel.send("{no json")
        assert (await call.until("error"))["error"]["type"] == "invalid_request_error"


async def test_a_call_is_hung_up_by_its_location(gateway: RunningGateway) -> None:
    async with calling(gateway.url, SESSION) as call:
        await call.until("session.created")
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{gateway.url}{call.location}/hangup")
            assert answer.status_code == 200
            async with asyncio.timeout(600):
                await call.ended.wait()
            while answer.status_code == 200:  # until the server has heard of the end, too
                answer = await client.post(f"{gateway.url}{call.location}/hangup")
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "call_not_found"


@pytest.mark.parametrize(
    ("session", "status", "param"),
    [
        ({**SESSION, "model": "other"}, 404, "model"),
        ({**SESSION, "model": 3}, 400, "session.model"),
        ({**SESSION, "model": "\ud800"}, 400, "session.model"),
        ({"type": "realtime", "output_modalities": ["smell"]}, 400, None),
        ({"type": "realtime", "instructions": "x" * (600 << 10)}, 400, "session"),
        ("none", 400, "session"),
        ({"type": "realtime", "audio": {"output": {"voice": "me"}}}, 400, None),
    ],
)
async def test_a_session_that_cannot_be_is_refused_before_the_call(
    session: Any, status: int, param: str | None, gateway: RunningGateway
) -> None:
    caller = Caller(gateway.url, {})
    try:
        answer = await caller.post(await caller.offer(), session)
    finally:
        await caller.close()
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    if param is not None:
        assert error["param"] == param


OFFERS = [
    *("", "v=0", "hello", "v=0\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\n"),
    "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=end-of-candidates\r\n",
]


@pytest.mark.parametrize("offer", OFFERS)
async def test_an_offer_that_means_nothing_is_refused(offer: str, gateway: RunningGateway) -> None:
    async with httpx.AsyncClient() as client:
        for body in (
            {"content": offer, "headers": {"content-type": "application/sdp"}},
            {"files": {"sdp": (None, offer), "session": (None, "{}")}},
        ):
            answer = await client.post(f"{gateway.url}{PATH}", **body, timeout=600)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == "sdp"


async def test_a_client_secret_opens_calls_and_a_wrong_key_none(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    with running_gateway(folder, OMNI, keys=Keys(["sk-user"])) as gateway:
        secrets = f"{gateway.url}/v1/realtime/client_secrets"
        head = {"authorization": "Bearer sk-user"}
        body = {"session": {"type": "realtime", "instructions": "As told."}}
        async with httpx.AsyncClient() as client:
            made = (await client.post(secrets, json=body, headers=head)).json()
        async with calling(gateway.url, authorization=f"Bearer {made['value']}") as call:
            created = await call.until("session.created")
            assert created["session"]["instructions"] == "As told."
            async with httpx.AsyncClient() as client:
                for key, status in ((None, 401), ("Bearer sk-user", 200)):
                    headers = {} if key is None else {"authorization": key}
                    url = f"{gateway.url}{call.location}/hangup"
                    answer = await client.post(url, headers=headers)
                    assert answer.status_code == status
        caller = Caller(gateway.url, {"authorization": "Bearer sk-other"})
        try:
            assert (await caller.post(await caller.offer())).status_code == 401
        finally:
            await caller.close()
        wait_until(lambda: gateway.do(lambda: gateway.runtime.flights.is_empty))


def bridges() -> list[psutil.Process]:
    """The processes of calls that this one has."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and BRIDGE in child.cmdline():
                found.append(child)
    return found


async def test_the_process_of_calls_ends_with_the_last(gateway: RunningGateway) -> None:
    async with calling(gateway.url, SESSION) as call, calling(gateway.url, SESSION) as other:
        await call.until("session.created")
        await other.until("session.created")
        assert len(bridges()) == 1
    await asyncio.to_thread(wait_until, lambda: not bridges())


async def test_a_killed_process_of_calls_is_replaced_for_the_next(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with calling(gateway.url, SESSION) as call:
        await call.until("session.created")
        await call.write("endless")
        call.say("response.create")
        await call.until("output_audio_buffer.started")
        (bridge,) = bridges()
        bridge.kill()
        await asyncio.to_thread(gateway.wait_until_idle)  # its sessions have ended
        await asyncio.to_thread(wait_until, lambda: "calls has ended" in caplog.text)
        async with calling(gateway.url, SESSION) as other:
            await other.until("session.created")
            (another,) = bridges()
            assert another.pid != bridge.pid


def test_the_process_of_calls_ends_with_its_server() -> None:
    ended = subprocess.run([sys.executable, "-m", BRIDGE], input=b"", timeout=600, check=False)
    assert ended.returncode == 0

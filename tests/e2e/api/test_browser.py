"""A real browser speaks with the tiny model by WebRTC, as OpenAI's documentation shows it."""

from pathlib import Path

import httpx
import pytest
from support.servers.server import TinyServer

pytest.importorskip("aiortc", reason="the extra omnistage[webrtc] is not installed")
pytest.importorskip("playwright", reason="`make browser` installs playwright")

from support.realtime.browser import NO_BROWSER, PageCall, browser_path, browsing

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(browser_path() is None, reason=NO_BROWSER),
]


async def test_a_page_speaks_hears_and_interrupts(server: TinyServer, tmp_path: Path) -> None:
    body = {"session": {"type": "realtime", "instructions": "Be short."}}
    async with httpx.AsyncClient() as client:
        made = await client.post(f"{server.url}/v1/realtime/client_secrets", json=body)
    async with browsing(server.url, tmp_path) as page:
        call = PageCall(page)
        await call.begin(made.json()["value"])
        created = await call.until("session.created")
        assert created["session"]["instructions"] == "Be short."
        await call.until_quiet()
        # What the page says is a turn, and its answer is heard.
        await call.speak(True)
        started = await call.until("input_audio_buffer.speech_started")
        await call.speak(False)
        committed = await call.until("input_audio_buffer.committed")
        assert committed["item_id"] == started["item_id"]
        begun = await call.until("output_audio_buffer.started")
        await call.until_sound()
        # It speaks into the answer, and hears no more of it. A short one may be over before.
        detection = {"type": "server_vad", "create_response": False}
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        await call.say("session.update", session=session)
        await call.until("session.updated")
        while not await call.interrupts():
            await call.say("response.create")
            begun = await call.until("output_audio_buffer.started")
            await call.until_sound()
        cleared = await call.until("output_audio_buffer.cleared")
        assert cleared["response_id"] == begun["response_id"]
        truncated = await call.until("conversation.item.truncated")
        assert truncated["audio_end_ms"] > 0
        await call.until_quiet()
        assert "output_audio_buffer.started" not in call.kinds_since(cleared)
        assert "response.output_audio.delta" not in call.kinds_since(created)
        await page.evaluate("peer.close()")

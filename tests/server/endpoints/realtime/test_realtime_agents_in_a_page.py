"""@openai/agents-realtime as it is in a browser's page, by WebRTC: `make browser`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fakes import stages as fake_stages
from support.gateway.serving import OMNI, RunningGateway, running_gateway

pytest.importorskip("aiortc", reason="the extra omnistage[webrtc] is not installed")
pytest.importorskip("playwright", reason="`make browser` installs playwright")

from playwright.async_api import Page
from support.realtime.browser import NO_BROWSER, PageCall, browser_path, browsing
from support.realtime.tools import TOOL_TEXT, Speaker, tool_call

BUNDLE = os.environ.get("OMNISTAGE_AGENTS_JS")  # the package's own file for pages
# A session as the package's documentation has it, whose microphone can be muted. What the server
# sends is kept in `events`, what the package tells its user in `told`.
SESSION = """async (key) => {
  const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC, tool } = OpenAIAgentsRealtime;
  const create = RTCPeerConnection.prototype.createDataChannel;
  window.events = [];
  RTCPeerConnection.prototype.createDataChannel = function (...given) {
    window.peer = this;
    window.channel = create.apply(this, given);
    channel.addEventListener("message", (message) => events.push(JSON.parse(message.data)));
    return channel;
  };
  const mediaStream = await navigator.mediaDevices.getUserMedia({audio: true});
  window.microphone = mediaStream.getTracks()[0];
  microphone.enabled = false;
  window.told = {errors: [], calls: []};
  const weather = tool({
    name: "weather",
    description: "The weather of a city.",
    parameters: {
      type: "object",
      properties: {city: {type: "string"}},
      required: ["city"],
      additionalProperties: false,
    },
    execute: async (given) => { told.calls.push(given); return "sunny"; },
  });
  const audioElement = Object.assign(new Audio(), {autoplay: true});
  const baseUrl = new URL("/v1/realtime/calls", location.href).href;
  const transport = new OpenAIRealtimeWebRTC({baseUrl, mediaStream, audioElement});
  const agent = new RealtimeAgent({name: "a", instructions: "Be short.", tools: [weather]});
  window.session = new RealtimeSession(agent, {transport, model: "omni"});
  session.on("error", (event) => told.errors.push(String(event.error?.message ?? event.error)));
  await session.connect({apiKey: key});
}"""

pytestmark = [
    pytest.mark.usefixtures("by_loudness"),
    pytest.mark.skipif(browser_path() is None, reason=NO_BROWSER),
    pytest.mark.skipif(BUNDLE is None, reason="`make browser` installs agents-js"),
]


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    monkeypatch.setitem(fake_stages.SCRIPTS, TOOL_TEXT, tool_call)
    monkeypatch.setattr(fake_stages, "FakeCode2Wav", Speaker)
    monkeypatch.setattr(fake_stages, "FRAMES", [25] * 4)  # 2 s
    graph = {**OMNI, "served_model_name": "omni"}
    with running_gateway(tmp_path, graph, arena_mb=16) as gateway:
        yield gateway
        gateway.wait_until_idle()


async def told(page: Page, name: str) -> Any:
    """What the package has told its user."""
    return await page.evaluate(f"told.{name}")


async def test_a_page_of_agents_js_speaks_hears_calls_a_tool_and_interrupts(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    async with httpx.AsyncClient() as client:
        made = await client.post(f"{gateway.url}/v1/realtime/client_secrets", json={})
    async with browsing(gateway.url, tmp_path) as page:
        assert BUNDLE is not None
        await page.add_script_tag(path=BUNDLE)
        call = PageCall(page)
        await page.evaluate(SESSION, made.json()["value"])
        updated = await call.until("session.updated")
        assert [one["name"] for one in updated["session"]["tools"]] == ["weather"]
        # A tool is called, and what it returned is answered aloud.
        await page.evaluate("(text) => session.sendMessage(text)", TOOL_TEXT)
        await call.until("response.function_call_arguments.done")
        begun = await call.until("output_audio_buffer.started")
        await call.until_sound()
        assert await told(page, "calls") == [{"city": "Paris"}]
        stopped = await call.until("output_audio_buffer.stopped")
        assert stopped["response_id"] == begun["response_id"]
        # What the microphone hears is a turn, and is answered aloud.
        await call.until_quiet()
        await call.speak(True)
        await call.until("input_audio_buffer.speech_started")
        await call.speak(False)
        await call.until("output_audio_buffer.started")
        await call.until_sound()
        await call.until("output_audio_buffer.stopped")
        # Speech into an endless answer ends it; so does the page, by a button for example.
        for is_spoken_into in (True, False):
            await page.evaluate("session.sendMessage('endless')")
            endless = await call.until("output_audio_buffer.started")
            await call.until_sound()
            if is_spoken_into:
                await call.speak(True)
                await call.until("input_audio_buffer.speech_started")
                await call.speak(False)
            else:
                await page.evaluate("session.interrupt()")
            cleared = await call.until("output_audio_buffer.cleared")
            assert cleared["response_id"] == endless["response_id"]
            assert (await call.until("conversation.item.truncated"))["audio_end_ms"] > 0
            if is_spoken_into:  # that is a turn, too
                await call.until("output_audio_buffer.stopped")
            await call.until_quiet()
        history = await page.evaluate("session.history.map((item) => [item.type, item.role])")
        assert history.count(["function_call", None]) == 1
        assert history.count(["message", "user"]) >= 5  # three are written, two spoken at least
        assert await told(page, "errors") == []
        await page.evaluate("session.close()")

"""A headless Chromium whose microphone repeats a voice, and a call by WebRTC from its page."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import ConsoleMessage, Page, async_playwright
from support.media.sounds import wav_of
from support.realtime.order import Event, Order, check_event

from omnistage.bench.realtime.voice import synthesized

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_BROWSER = "no Chromium: Debian's package is chromium"
WAIT_S = 600
QUIET_S = 0.5
# A call as OpenAI's documentation has it; what comes is kept in `events`. The microphone is muted.
CALL = """async (key) => {
  const peer = (window.peer = new RTCPeerConnection());
  const player = Object.assign(new Audio(), {autoplay: true});
  peer.ontrack = (event) => (player.srcObject = event.streams[0]);
  const stream = await navigator.mediaDevices.getUserMedia({audio: true});
  window.microphone = stream.getTracks()[0];
  microphone.enabled = false;
  peer.addTrack(microphone);
  window.events = [];
  window.channel = peer.createDataChannel("oai-events");
  channel.onmessage = (message) => events.push(JSON.parse(message.data));
  const offer = await peer.createOffer();
  await peer.setLocalDescription(offer);
  const answer = await fetch("/v1/realtime/calls", {
    method: "POST",
    body: offer.sdp,
    headers: {Authorization: `Bearer ${key}`, "Content-Type": "application/sdp"},
  });
  await peer.setRemoteDescription({type: "answer", sdp: await answer.text()});
}"""
# What was played so far: seconds, and the energy of its samples.
PLAYED = """async () => {
  for (const one of (await peer.getStats()).values())
    if (one.type === "inbound-rtp" && one.kind === "audio")
      return [one.totalSamplesDuration ?? 0, one.totalAudioEnergy ?? 0];
  return [0, 0];
}"""


def browser_path() -> str | None:
    """Return a browser of this machine."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def is_error(message: ConsoleMessage) -> bool:
    """Return whether a page reports an error; that it has no icon is none."""
    return message.type == "error" and not message.location["url"].endswith("/favicon.ico")


@asynccontextmanager
async def browsing(url: str, folder: Path) -> AsyncIterator[Page]:
    """Open a page in a browser of its own; errors of its console are failures."""
    voice = folder / "voice.wav"
    voice.write_bytes(wav_of(synthesized(3.0, 1)))
    options = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    options += [f"--use-file-for-fake-audio-capture={voice}", "--no-sandbox"]
    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_path(), args=options)
        page = await browser.new_page()
        page.on("console", lambda one: wrong.append(one.text) if is_error(one) else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(url)
        yield page
        await browser.close()
    assert wrong == [], wrong


class PageCall:
    """A call of a page; each event that comes is checked once."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.events: list[Event] = []
        self._order = Order()
        self._at = 0  # the first event that nobody has waited for

    async def begin(self, key: str) -> None:
        """Call with a client secret."""
        await self.page.evaluate(CALL, key)

    async def say(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, **fields}
        await self.page.evaluate("(event) => channel.send(JSON.stringify(event))", event)

    async def speak(self, is_loud: bool) -> None:
        """Turn the microphone on or off."""
        await self.page.evaluate("(is_loud) => { microphone.enabled = is_loud; }", is_loud)

    async def interrupts(self) -> bool:
        """Speak a turn; returns whether it began before the end of the answer that plays."""
        await self.speak(True)
        started = await self.until("input_audio_buffer.speech_started")
        await self.speak(False)
        before = self.events[: self.events.index(started)]
        played = [one for one in before if one["type"].startswith("output_audio_buffer.")]
        return bool(played[-1]["type"].endswith(".started"))

    async def until(self, kind: str) -> Event:
        """Return the next event of a type."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for event in self.events[self._at :]:
                    self._at += 1
                    assert event["type"] != "error", event
                    if event["type"] == kind:
                        return event
                await self._take()

    async def _take(self) -> None:
        come = await self.page.evaluate(f"events.slice({len(self.events)})")
        for event in come:
            check_event(event)
            self._order.add(event)
        self.events += come
        if not come:
            await asyncio.sleep(0.02)

    async def until_sound(self) -> None:
        """Wait until something loud has been played since now."""
        before = (await self.page.evaluate(PLAYED))[1]
        async with asyncio.timeout(WAIT_S):
            while True:
                await asyncio.sleep(0.02)
                if (await self.page.evaluate(PLAYED))[1] - before > 1e-4:
                    return

    async def until_quiet(self) -> None:
        """Wait until half a second has been played that is silent."""
        at, energy = await self.page.evaluate(PLAYED)
        async with asyncio.timeout(WAIT_S):
            while True:
                now, later = await self.page.evaluate(PLAYED)
                if later - energy > 1e-6:
                    at, energy = now, later
                elif now - at > QUIET_S:
                    return
                await asyncio.sleep(0.02)

    def kinds_since(self, event: Event) -> list[str]:
        """Return the types of the events behind one."""
        return [one["type"] for one in self.events[self.events.index(event) + 1 :]]

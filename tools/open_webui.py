"""Drives the real Open WebUI against a server with a headless Chromium: `make open-webui`.

Open WebUI gets the settings that docs/integrations.md shows. The flows are a chat, an image in the
question, Read Aloud, dictation and image generation. Without --url the server has fake stages.
"""

import argparse
import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from page import browser_path
from playwright.sync_api import Page, Response, sync_playwright
from support.gateway.serving import IMAGES, OMNI, running_gateway
from support.media.pictures import png
from support.ports import free_port

ROOT = Path(__file__).parent.parent
SERVER, PAINTER = "http://host.docker.internal:8000", "http://host.docker.internal:8001"
# What a browser test needs and a person does not: no sign-in, nothing from hubs, no further chats.
FOR_THE_TEST = {
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "test",
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "ENABLE_OLLAMA_API": "false",
    "ENABLE_TITLE_GENERATION": "false",
    "ENABLE_TAGS_GENERATION": "false",
    "ENABLE_FOLLOW_UP_GENERATION": "false",
    "ENABLE_IMAGE_PROMPT_GENERATION": "false",
}
MICROPHONE = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
START_S, WAIT_S = 300, 60
GENERATE = """async () => (await fetch("/api/v1/images/generations", {
  method: "POST",
  headers: {"content-type": "application/json", authorization: `Bearer ${localStorage.token}`},
  body: JSON.stringify({prompt: "A fox in the snow."}),
})).json()"""


def settings(url: str, painter: str) -> dict[str, str]:
    """Return the variables that the documentation sets, with these servers' addresses."""
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"```sh\n(docker run.*?)```", page, re.DOTALL)
    shown = dict(re.findall(r"-e (\w+)=(\S+)", command))
    return {
        name: value.replace(SERVER, url).replace(PAINTER, painter) for name, value in shown.items()
    }


@contextlib.contextmanager
def open_webui(program: Path, folder: Path, variables: dict[str, str]) -> Iterator[str]:
    """Start Open WebUI, yield its address, and end it."""
    port = free_port()
    env = {**os.environ, **FOR_THE_TEST, **variables, "DATA_DIR": str(folder / "data")}
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not is_up(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{log.read_text()[-4000:]}\nOpen WebUI did not start")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def is_up(url: str) -> bool:
    """Returns whether its /health answers."""
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    return False


class Calls:
    """The answers of Open WebUI's backend that a page has got, by the end of their paths."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._statuses: dict[str, list[int]] = {}
        page.on("response", self._note)

    def _note(self, response: Response) -> None:
        for end in ("chat/completions", "audio/speech", "audio/transcriptions"):
            if response.request.method == "POST" and response.url.endswith(end):
                self._statuses.setdefault(end, []).append(response.status)

    def expect(self, end: str, count: int) -> None:
        """Wait until so many have come, all of them 200."""
        deadline = time.monotonic() + WAIT_S
        while len(self._statuses.get(end, ())) < count:
            assert time.monotonic() < deadline, f"{end}: {self._statuses}"
            self._page.wait_for_timeout(100)
        assert set(self._statuses[end]) == {200}, self._statuses


def send(page: Page, text: str) -> None:
    """Type a message and send it."""
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> int:
    """Count the finished answers of a chat: each has a button that reads it aloud."""
    return len(page.get_by_role("button", name="Read Aloud").all())


def until(page: Page, count: int) -> None:
    """Wait for so many finished answers."""
    deadline = time.monotonic() + WAIT_S
    while answers(page) < count:
        assert time.monotonic() < deadline, page.inner_text("body")[-1500:]
        page.wait_for_timeout(100)


def drive(page: Page, image: Path, shots: Path | None) -> None:
    """Go through every flow; each fails with what the page shows."""
    calls = Calls(page)
    welcome = page.get_by_role("button", name="Okay, Let's Go!")
    welcome.wait_for(timeout=WAIT_S * 1000)
    welcome.click()
    send(page, "Say hello.")
    until(page, 1)
    calls.expect("chat/completions", 1)
    report("chat")
    page.locator("input[type=file]").first.set_input_files(image)
    page.wait_for_timeout(2000)
    send(page, "What is this?")
    until(page, 2)
    calls.expect("chat/completions", 2)
    report("an image in the question")
    page.get_by_role("button", name="Read Aloud").last.click()
    calls.expect("audio/speech", 1)
    report("Read Aloud")
    page.locator("#voice-input-button").click()
    page.wait_for_timeout(3000)
    page.locator("#confirm-recording-button").click()
    calls.expect("audio/transcriptions", 1)
    page.wait_for_function("() => document.querySelector('#chat-input').innerText.trim() !== ''")
    report("dictation")
    keep(page, "open-webui-chat", shots)
    made = page.evaluate(GENERATE)  # a model calls its tool generate_image, which calls this
    assert len(made) == 1, made
    assert page.request.get(page.url.split("/c/")[0] + made[0]["url"]).status == 200
    report("image generation")


def report(flow: str) -> None:
    """Print that a flow has passed."""
    print(f"ok: {flow}", flush=True)  # noqa: T201


def keep(page: Page, name: str, shots: Path | None) -> None:
    """Take a picture of the window, if pictures are wanted."""
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=shots / f"{name}.png")


@contextlib.contextmanager
def servers(options: Any, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the addresses of the server that speaks and of the one for images."""
    with contextlib.ExitStack() as stack:
        urls = []
        for name, given, graph in (("omni", options.url, OMNI), ("image", options.images, IMAGES)):
            if given is None:
                (folder / name).mkdir()
                named = {**graph, "served_model_name": ["omni", "Qwen/Qwen-Image"]}
                gateway = stack.enter_context(running_gateway(folder / name, named, arena_mb=16))
                given = gateway.url
            urls.append(given)
        yield urls[0], urls[1]


def main() -> None:
    """Start what is needed and go through the flows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path, required=True, help="open-webui")
    parser.add_argument("--url", help="a server that speaks, of a model named omni")
    parser.add_argument("--images", help="a server of images, of a model named Qwen/Qwen-Image")
    parser.add_argument("--shots", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        image = folder / "image.png"
        image.write_bytes(png(64, 64))
        variables = settings(*stack.enter_context(servers(options, folder)))
        url = stack.enter_context(open_webui(options.program.resolve(), folder, variables))
        report(f"Open WebUI at {url}")
        playwright = stack.enter_context(sync_playwright())
        arguments = ["--no-sandbox", *MICROPHONE]
        browser = playwright.chromium.launch(executable_path=browser_path(), args=arguments)
        page = browser.new_context(permissions=["microphone"]).new_page()
        page.goto(url)
        drive(page, image, options.shots)
        browser.close()


if __name__ == "__main__":
    main()

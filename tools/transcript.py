"""Writes docs/transcript.md and the screenshot of the page: `make transcript`.

A headless Chromium asks the page of `omnistage up`, which was started in an empty folder. A
recogniser and a judge of shapes, which know nothing of the model, hear and see the answers. The
first answer whose text, audio and image do not belong together ends it.
"""

import argparse
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import httpx
from ear import errors, words
from page import NO_BROWSER, browser_path
from page_flows import opened
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from support.media.pictures import pixels_of
from support.oracles.drawings import faults, seen
from support.oracles.recordings import heard
from support.ports import free_port

from omnistage.demo.examples import QUESTION
from omnistage.demo.offer import MODES

ROOT = Path(__file__).parents[1]
TRANSCRIPT, SCREENSHOT = "docs/transcript.md", "docs/pictures/page-chat.png"
DRAW, WHAT, DAY = "Draw a green square on white.", "What is in the picture?", "(a recording)"
ANSWERS = {
    DRAW: "Here is a green square on white.",
    WHAT: "A green square on white.",
    DAY: "Tuesday comes after Monday.",
}
DRAWN, SPOKEN = "Text, speech and image", "Text and speech"
PATIENCE_S, PATIENCE_MS = 300.0, 300_000
STOP_S = 60.0
MOST_WRONG = 1  # word of an answer, of which the recogniser hears another
COLOURS = 128  # of the screenshot's palette
HEAD = """# Transcript

`omnistage up`, started in an empty folder, gave these answers to a headless Chromium on its page.
`make transcript` repeats it, and writes this page and [its screenshot](pictures/page-chat.png). A
recogniser (pocketsphinx) writes down the audio, with one wrong word at most. A judge of colours and
contours describes the drawing. Neither knows the model, a [toy](models.md#small).

| question | answer | words in its audio, by the recogniser | shapes in its image |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as the page shows it, with its files."""

    text: str
    audio: bytes
    image: bytes | None


def row(question: str, answer: Answer) -> str:
    """Return the transcript's row of an answer.

    Raises AssertionError if its text is not the right one, or its audio or image is not its text's.
    """
    assert answer.text == ANSWERS[question], answer.text
    wrong = errors(words(answer.text), heard(answer.audio).split())
    assert wrong <= MOST_WRONG, (answer.text, heard(answer.audio))
    shapes = "none"
    if answer.image is not None:
        pixels = pixels_of(answer.image)
        assert faults(pixels, answer.text) == [], faults(pixels, answer.text)
        ground, found = seen(pixels)
        things = [
            f"a {one.colour} {one.kind}, {' '.join(dict.fromkeys(one.place))}" for one in found
        ]
        shapes = f"{', '.join(things)}, on {ground}"
    return f"| {asked(question)} | {answer.text} | {heard(answer.audio)} | {shapes} |\n"


def asked(question: str) -> str:
    """Return a question with its files in words."""
    files = {
        WHAT: f"`{WHAT}` with the drawing",
        DAY: "`Which day comes after Monday?` as a recording",
    }
    return files.get(question, f"`{question}`")


@contextlib.contextmanager
def up(folder: Path) -> Iterator[str]:
    """Run `omnistage up` in a folder until the context ends; yields the page's address."""
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "omnistage.server.cli", "up"]
    command += ["--port", str(port), "--page-port", "0"]
    empty = folder / "empty"
    empty.mkdir()
    environment = dict(os.environ, PYTHONPATH="")
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=empty, env=environment, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (page := re.search(r"The page is at (\S+)", log.read_text())) or not (
                is_ready(port)
            ):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield page[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_S)


def is_ready(port: int) -> bool:
    """Return True once the server can answer."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/ready").is_success
    return False


def ask(page: Page, question: str, mode: str, *files: Path) -> Answer:
    """Ask the conversation of the page, and wait for the whole answer."""
    bots = page.locator("#chat .bot-row")
    before = bots.count()
    page.get_by_label(mode, exact=True).check()
    if files:
        page.locator("#question input[type=file]").set_input_files(files)
        page.locator("#question .thumbnail-item").wait_for(timeout=PATIENCE_MS)
    box = page.locator("#question textarea")
    if question != DAY:
        box.fill(question)
    box.press("Enter")
    bot = bots.nth(before)
    bot.locator("[data-testid=waveform-Audio]").wait_for(timeout=PATIENCE_MS)
    page.locator("#question .submit-button").wait_for(timeout=PATIENCE_MS)
    audio, images = page.locator("#chat-player a"), bot.locator("img")
    return Answer(
        bot.locator(".message-content").inner_text().strip(),
        fetched(page, audio.get_attribute("href")),
        fetched(page, images.get_attribute("src")) if "image" in MODES[mode] else None,
    )


def fetched(page: Page, address: str | None) -> bytes:
    """Return a file of the page."""
    assert address is not None
    reply = page.request.get(urljoin(page.url, address))
    assert reply.ok, reply.status_text
    content: bytes = reply.body()
    return content


def converse(page: Page, folder: Path) -> list[str]:
    """Have the model draw, and then say what is in the drawing; returns the rows."""
    drawn = ask(page, DRAW, DRAWN)
    assert drawn.image is not None
    file = folder / "drawing.png"
    file.write_bytes(drawn.image)
    return [row(DRAW, drawn), row(WHAT, ask(page, WHAT, SPOKEN, file))]


def shoot(page: Page) -> None:
    """Save the whole conversation as a small PNG."""
    whole = "#chat, #chat .bubble-wrap {height: auto !important; max-height: none !important}"
    page.add_style_tag(content=whole)
    page.wait_for_timeout(1000)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    image.quantize(COLOURS).save(ROOT / SCREENSHOT, optimize=True)


def main() -> None:
    """Ask, and write both files once all is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browser", default=browser_path(), help="the browser's program")
    options = parser.parse_args()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        if options.browser is None and not Path(playwright.chromium.executable_path).exists():
            sys.exit(NO_BROWSER)
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
        with up(folder) as url:
            with opened(browser, url) as page:
                rows = converse(page, folder)
                shoot(page)
            with opened(browser, url) as page:  # a new conversation
                rows.append(row(DAY, ask(page, DAY, SPOKEN, QUESTION)))
        browser.close()
    (ROOT / TRANSCRIPT).write_text(HEAD + "".join(rows), "utf-8")
    print(HEAD + "".join(rows))  # noqa: T201


if __name__ == "__main__":
    main()

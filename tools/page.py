"""Drives the page with a headless Chromium against small servers: `make page`.

It ends with the first thing that is not as it should be. With --shots it leaves pictures of the
page at two widths, in dark and light, and one of what each question has come to.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_flows import (
    DEAD,
    chosen_mode,
    conversation,
    dead_server,
    edit,
    example_with_media,
    open_tab,
    opened,
    picture,
    question_by_keyboard,
    speech,
    stopped_answer,
    transcription,
)
from playwright.sync_api import Browser, Page, sync_playwright
from support.gateway.serving import MIXED, running_gateway
from support.media.sounds import wav_of
from support.servers.page import running_page
from support.servers.server import running_server

from omnistage.bench.realtime.voice import synthesized
from omnistage.demo.examples import spoken_question
from omnistage.demo.page import TABS
from omnistage.stages.diffusion.checkpoint import write_tiny

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_BROWSER = """no browser: `python -m playwright install chromium` fetches one, Debian's package is
chromium, and --browser names one that is elsewhere"""
WIDTHS = (1280, 390)
NARROWEST = 320
EVERYTHING: dict[str, Any] = {
    **MIXED,
    # Images of prompts, not of answers.
    "edges": [{"from": "thinker", "to": "talker"}, {"from": "talker", "to": "code2wav"}],
    "outputs": {"text": "thinker", "audio": "code2wav", "image": "dit", "video": "dit"},
}


def browser_path() -> str | None:
    """A browser of this machine; without one Playwright's own is tried."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def every_tab(browser: Browser, url: str, shots: Path | None) -> None:
    """Each tab of a model that makes everything is opened by a click, on narrow windows too."""
    for width in (*WIDTHS, NARROWEST):
        with opened(browser, url, width) as page:
            for name in TABS.values():
                open_tab(page, name)
                chosen = page.get_by_role("tab", selected=True).inner_text()
                assert chosen == name, (width, name, chosen)
                fits(page)
            keep(page, f"every-tab-{width}", shots)


def fits(page: Page) -> None:
    """Nothing is wider than the window."""
    wide = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"the page is {wide} px too wide"


def shoot(browser: Browser, url: str, name: str, folder: Path | None, tabs: list[str]) -> None:
    """Each tab at each width, in dark and light."""
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            with opened(browser, url, width, scheme) as page:
                for tab in tabs:
                    open_tab(page, tab)
                    fits(page)
                    keep(page, f"{name}-{tab.lower()}-{width}-{scheme}", folder)


def keep(page: Page, name: str, folder: Path | None) -> None:
    """A picture of the whole page, if pictures are wanted."""
    if folder is not None:
        page.screenshot(path=folder / f"{name}.png", full_page=True)


def drive(browser: Browser, microphone: Browser, folder: Path, shots: Path | None) -> None:
    """All of it: a server that speaks, one of pictures, and none."""
    images = folder / "images"
    write_tiny("qwen-image", images)
    sound = folder / "question.mp3"
    sound.write_bytes(spoken_question())
    with running_server("small", folder / "omni.log") as server, running_page(server.url) as url:
        flows = (question_by_keyboard, example_with_media, chosen_mode, stopped_answer, speech)
        for flow in flows:
            with opened(browser, url) as page:
                flow(page)
                keep(page, flow.__name__, shots)
            tell(flow)
        with opened(microphone, url) as page:
            conversation(page)
            keep(page, "conversation", shots)
        tell(conversation)
        with opened(browser, url, 390, "dark") as page:
            transcription(page, sound)
        tell(transcription)
        shoot(browser, url, "omni", shots, ["Chat", "Talk", "Speech", "Transcription"])
    with (
        running_server(str(images), folder / "images.log") as server,
        running_page(server.url) as url,
    ):
        for flow in (picture, edit):
            with opened(browser, url) as page:
                flow(page)
                keep(page, flow.__name__, shots)
            tell(flow)
        shoot(browser, url, "images", shots, ["Images", "Edits"])
    with running_gateway(folder, EVERYTHING) as made, running_page(made.url) as url:
        every_tab(browser, url, shots)
        tell(every_tab)
    with running_page(DEAD) as url:
        with opened(browser, url) as page:
            dead_server(page)
        tell(dead_server)
        shoot(browser, url, "dead", shots, ["Chat"])


def tell(flow: Callable[..., None]) -> None:
    print(f"ok: {flow.__doc__}", flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browser", default=browser_path(), help="the browser's program")
    parser.add_argument("--shots", type=Path, help="a folder for pictures of the page")
    options = parser.parse_args()
    if options.shots is not None:
        options.shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        if options.browser is None and not Path(playwright.chromium.executable_path).exists():
            sys.exit(NO_BROWSER)
        arguments = ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=options.browser, args=arguments)
        spoken = Path(folder) / "spoken.wav"
        spoken.write_bytes(wav_of(synthesized(3.0, 1)))
        arguments += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        arguments += [f"--use-file-for-fake-audio-capture={spoken}"]
        microphone = playwright.chromium.launch(executable_path=options.browser, args=arguments)
        drive(browser, microphone, Path(folder), options.shots)
        microphone.close()
        browser.close()


if __name__ == "__main__":
    main()

"""Drives the page with a headless Chromium against small servers: `make page`.

It ends with the first thing that is not as it should be. With --shots it leaves pictures of the
page at two widths, in dark and light, and one of what each question has come to.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from support.gateway import MIXED, running_gateway
from support.page import running_page
from support.server import running_server
from support.sounds import wav_of

from omnistage.bench.realtime.voice import synthesized
from omnistage.demo.examples import spoken_question
from omnistage.demo.page import TABS
from omnistage.stages.diffusion.checkpoint import write_tiny

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_BROWSER = """no browser: `python -m playwright install chromium` fetches one, Debian's package is
chromium, and --browser names one that is elsewhere"""
DEAD = "http://127.0.0.1:9"
WIDTHS = (1280, 390)
NARROWEST = 320
EVERYTHING: dict[str, Any] = {
    **MIXED,
    # Images of prompts, not of answers.
    "edges": [{"from": "thinker", "to": "talker"}, {"from": "talker", "to": "code2wav"}],
    "outputs": {"text": "thinker", "audio": "code2wav", "image": "dit", "video": "dit"},
}
WAIT_S = 300  # an edit of a megapixel takes a minute of a busy machine
SPEAKING = "Playing ("
STORY = "Tell me a story about a dog in the garden."
# The page's microphone is switched on and off, so that no answer has to begin within a pause.
KEEP_MICROPHONE = """() => {
  const devices = navigator.mediaDevices, open = devices.getUserMedia.bind(devices);
  devices.getUserMedia = async (wanted) => {
    const stream = await open(wanted);
    window.microphone = stream.getTracks()[0];
    return stream;
  };
}"""
SPEAK = "(is_loud) => { microphone.enabled = is_loud; }"
PLAYER = "() => document.querySelector('.os-player').dataset.state"


def browser_path() -> str | None:
    """A browser of this machine; without one Playwright's own is tried."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextlib.contextmanager
def opened(browser: Browser, url: str, width: int = 1280, scheme: Any = "light") -> Iterator[Page]:
    """The page in a window of its own; errors of the console and other hosts are failures."""
    wrong: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda one: None if is_own(one.url, url) else wrong.append(one.url))
    page.goto(url)
    page.wait_for_selector("#head .os-ok, #head .os-dead:not(:has-text('Asking'))")
    page.wait_for_timeout(500)
    yield page
    assert wrong == [], wrong
    page.close()


def is_own(request: str, url: str) -> bool:
    return request.startswith((url, "data:", "blob:"))


def until(page: Page, is_true: Callable[[], object]) -> None:
    """Wait for what the page is about to show."""
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, page.inner_text("body")[-2000:]
        page.wait_for_timeout(30)


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    page.wait_for_timeout(500)


def answered(page: Page) -> bool:
    return "Whole answer" in page.inner_text("#times")


def question_by_keyboard(page: Page) -> None:
    """A typed question gets text, and audio that plays before its end and can be paused."""
    assert "a toy" in page.inner_text("#head")
    box = page.locator("#question textarea")
    box.fill(STORY)
    box.press("Enter")
    until(page, lambda: page.evaluate(PLAYER) == "playing")
    assert not answered(page), "the answer had ended before its sound played"
    until(page, lambda: answered(page))
    times = page.inner_text("#times")
    assert all(word in times for word in ("TTFT", "TTFP", "RTF")), times
    label = page.get_attribute("#times svg", "aria-label") or ""
    assert all(stage in label for stage in ("thinker", "talker", "code2wav")), label
    player = page.locator("#chat-player")
    player.get_by_role("button", name="Pause").click()
    until(page, lambda: page.evaluate(PLAYER) == "paused")
    player.get_by_role("button", name="Resume").click()
    until(page, lambda: page.evaluate(PLAYER) == "playing")
    assert page.locator("#chat .message.bot, #chat .bot").count() > 0


def example_with_media(page: Page) -> None:
    """Examples with an image and with a spoken question are sent by a click, and answered right."""
    page.get_by_role("button", name="A picture").click()
    until(page, lambda: answered(page))
    assert page.locator("#chat img").count() > 0
    assert "A red circle on blue." in page.inner_text("#chat")
    with opened(page.context.browser, page.url) as other:
        other.get_by_role("button", name="A spoken question").click()
        until(other, lambda: answered(other))
        assert "Tuesday comes after Monday." in other.inner_text("#chat")


def speech(page: Page) -> None:
    """A text is spoken; the one player plays it again and saves it."""
    open_tab(page, "Speech")
    page.get_by_role("button", name="The little dog").click()
    page.locator("#speech-start").click()
    until(page, lambda: "Done." in page.inner_text("#speech-line"))
    page.get_by_role("button", name="Stop", exact=True).locator("visible=true").click()
    until(page, lambda: page.locator("#speech-player a").is_visible())
    page.get_by_role("button", name="Play again").click()
    until(page, lambda: SPEAKING in page.inner_text("#speech-player"))


def chosen_mode(page: Page) -> None:
    """The chosen kind of answer is marked, also below the mouse."""
    colour = "(one) => getComputedStyle(one).backgroundColor"
    chosen, other = (page.get_by_label(name, exact=True) for name in ("Text", "Text and speech"))
    chosen.check()
    page.locator("#question textarea").focus()
    page.wait_for_timeout(500)
    assert chosen.evaluate(colour) != other.evaluate(colour)


def stopped_answer(page: Page) -> None:
    """Stop is in place of the arrow while an answer runs, and ends it."""
    box = page.locator("#question textarea")
    box.fill(STORY)
    box.press("Enter")
    page.locator("#question .stop-button").click()
    page.wait_for_selector("#question .submit-button")
    assert "Failed" not in page.inner_text("#chat")


def conversation(page: Page) -> None:
    """Who speaks is answered by voice, and speaking into the answer stops it."""
    page.evaluate(KEEP_MICROPHONE)
    open_tab(page, "Talk")
    state = "() => document.querySelector('.os-talk').dataset.state"
    page.get_by_role("button", name="Talk", exact=True).click()
    until(page, lambda: page.evaluate(state) == "hearing")
    page.evaluate(SPEAK, False)
    until(page, lambda: page.evaluate(state) == "answering")
    page.evaluate(SPEAK, True)
    cut = "() => Number(document.querySelector('.os-talk').dataset.interrupted ?? 0)"
    until(page, lambda: page.evaluate(cut) > 0)
    until(page, lambda: page.locator(".os-talk-words p").count() > 0)
    page.get_by_role("button", name="Stop", exact=True).locator("visible=true").click()
    until(page, lambda: page.evaluate(state) == "idle")


def transcription(page: Page, sound: Path) -> None:
    """A sound is written down; without one it is said what is missing."""
    open_tab(page, "Transcription")
    page.locator("#heard-start").click()
    until(page, lambda: "Record or choose audio" in page.inner_text("#heard-line"))
    page.locator("#heard input[type=file]").set_input_files(sound)
    page.wait_for_timeout(1500)
    page.locator("#heard-start").click()
    until(page, lambda: "Done." in page.inner_text("#heard-line"))


def few_steps(page: Page) -> None:
    """On the tab that is shown."""
    page.get_by_role("button", name="More settings").locator("visible=true").click()
    page.get_by_label("Steps").locator("visible=true").fill("8")


def picture(page: Page) -> None:
    """An image is made, with steps and previews on the way."""
    open_tab(page, "Images")
    few_steps(page)
    size = page.get_by_label("Size")
    size.fill("256x256")
    size.press("Enter")
    page.locator("#picture-prompt textarea").fill("A boat.")
    page.locator("#picture-make").click()
    until(page, lambda: "Step" in page.inner_text("#picture-progress"))
    until(page, lambda: "preview" in page.inner_text("#picture-gallery"))
    until(page, lambda: "Done" in page.inner_text("#picture-progress"))
    until(page, lambda: "preview" not in page.inner_text("#picture-gallery"))
    assert page.locator("#picture-gallery img").count() > 0


def edit(page: Page) -> None:
    """A picture is painted on and edited below the paint."""
    open_tab(page, "Edits")
    few_steps(page)
    page.get_by_role("button", name="A house in a meadow").click()
    page.wait_for_timeout(3000)
    canvas = page.locator("#edit-picture canvas").first
    canvas.scroll_into_view_if_needed()
    place = canvas.bounding_box()
    assert place is not None
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y + 20, steps=8)
    page.mouse.up()
    page.wait_for_timeout(1000)
    page.locator("#edit-start").click()
    until(page, lambda: "Done" in page.inner_text("#edit-progress"))
    assert page.locator("#edit-gallery img").count() > 0


def dead_server(page: Page) -> None:
    """A server that is not there is told in one sentence, at once and when it is asked."""
    sentence = f"The server at {DEAD} does not answer."
    assert sentence in page.inner_text("#head")
    page.locator("#question textarea").fill("Are you there?")
    page.locator("#question textarea").press("Enter")
    until(page, lambda: sentence in page.inner_text("#chat"))
    assert "Traceback" not in page.inner_text("body")


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

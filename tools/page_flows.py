"""Does on the page what a person does, and checks what it then shows."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

DEAD = "http://127.0.0.1:9"
WAIT_S = 900  # an edit of a megapixel takes minutes of a busy machine
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
# window.states are those that the conversation had: an answer may be cut within a moment.
NOTE_STATES = """() => {
  const talk = document.querySelector('.os-talk');
  window.states = [];
  const observer = new MutationObserver(() => states.push(talk.dataset.state));
  observer.observe(talk, { attributes: true, attributeFilter: ['data-state'] });
}"""
SPEAK = "(is_loud) => { microphone.enabled = is_loud; }"
# window.isEarly is whether the whole answer is still to come when its sound begins.
NOTE_FIRST_SOUND = """() => {
  const player = document.querySelector('.os-player');
  const observer = new MutationObserver(() => {
    if (player.dataset.state !== 'playing') return;
    window.isEarly = !document.querySelector('#times').innerText.includes('Whole answer');
    observer.disconnect();
  });
  observer.observe(player, { attributes: true });
}"""
PLAYER = "() => document.querySelector('.os-player').dataset.state"


@contextlib.contextmanager
def opened(browser: Browser, url: str, width: int = 1280, scheme: Any = "light") -> Iterator[Page]:
    """The page in a window of its own; errors of the console and other hosts are failures."""
    wrong: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda one: None if is_own(one.url, url) else wrong.append(one.url))
    page.goto(url)
    page.wait_for_selector("#head .os-ok, #head .os-dead")
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
    assert "a toy" in page.inner_text("#head"), page.inner_text("#head")
    page.evaluate(NOTE_FIRST_SOUND)
    box = page.locator("#question textarea")
    box.fill(STORY)
    box.press("Enter")
    player = page.locator("#chat-player")
    player.get_by_role("button", name="Pause").click(timeout=1000 * WAIT_S)  # once it is enabled
    until(page, lambda: page.evaluate(PLAYER) == "paused")
    assert page.evaluate("() => window.isEarly"), "the answer had ended before its sound played"
    until(page, lambda: answered(page))
    times = page.inner_text("#times")
    assert all(word in times for word in ("TTFT", "TTFP", "RTF")), times
    label = page.get_attribute("#times svg", "aria-label") or ""
    assert all(stage in label for stage in ("thinker", "talker", "code2wav")), label
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
    page.evaluate(NOTE_STATES)
    had = "(state) => states.includes(state)"
    state = "() => document.querySelector('.os-talk').dataset.state"
    page.get_by_role("button", name="Talk", exact=True).click()
    until(page, lambda: page.evaluate(had, "hearing"))
    cut = "() => Number(document.querySelector('.os-talk').dataset.interrupted ?? 0)"
    while page.evaluate(cut) == 0:  # an answer that has sounded to its end is not cut
        page.evaluate("() => { states.length = 0; }")
        page.evaluate(SPEAK, False)
        until(page, lambda: page.evaluate(had, "answering"))
        page.evaluate(SPEAK, True)
        until(page, lambda: page.evaluate(had, "hearing"))
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

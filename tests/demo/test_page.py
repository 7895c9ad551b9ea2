"""The page over gradio's own HTTP API: what a browser asks of it, and what it is told."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client, handle_file
from support.fakes.stages import FRAMES, SAMPLES_PER_FRAME, WORDS
from support.gateway.serving import RunningGateway
from support.servers.page_client import (
    SETTINGS,
    ask,
    files,
    is_skip,
    last,
    make,
    opened,
    visible_tabs,
)

from omnistage.demo import examples
from omnistage.demo.pictures import png

DEAD = "http://127.0.0.1:9"
SOUND_BYTES = 2 * sum(FRAMES) * SAMPLES_PER_FRAME
UNKNOWN = ("Text", None, "", None, None, None)  # what a page has that has learnt nothing


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> None:
    """Not looked at here: the page keeps its connections to the gateway of this process."""


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with opened(DEAD, tmp_path_factory.mktemp("page")) as client:
        yield client


def texts(chat: Any) -> list[str]:
    """What the bubbles of a chat say."""
    return [part["text"] for one in chat for part in one["content"] if part["type"] == "text"]


def test_a_question_is_answered_by_text_sound_and_times(
    omni: Client, omni_gateway: RunningGateway
) -> None:
    updates, expected = [], ["Hel", "Hello", "Hello there"]
    box = {"text": "before it: breathe", "files": []}
    for update in omni.submit(box, *SETTINGS, api_name="/chat"):
        updates.append(update)
        if expected and not is_skip(update[0]) and texts(update[0])[-1] == expected[0]:
            del expected[0]
            omni_gateway.wait_until_waiting()
            omni_gateway.go_on()
    assert not expected
    chat, times = last(updates, 0), last(updates, 3)
    assert files(chat, "assistant") == [".wav"]
    for word in ("TTFT", "TTFP", "RTF", "<svg", "gateway first audio"):
        assert word in times


def test_sound_is_there_before_the_answer_ends(omni: Client, omni_gateway: RunningGateway) -> None:
    box = {"text": "before it: breathe", "files": []}
    job = omni.submit(box, *SETTINGS, api_name="/chat")
    sound = next(player for _, _, player, _ in job if isinstance(player, str))
    with httpx.stream("GET", f"{omni.src}sound/{sound}") as response:
        pieces = response.iter_bytes()
        first = next(pieces)
        assert not job.done()
        for _ in WORDS:
            omni_gateway.wait_until_waiting()
            omni_gateway.go_on()
        assert len(first + b"".join(pieces)) == SOUND_BYTES
    assert len(list(job)) > 0


def test_a_picture_and_a_sound_are_answered(omni: Client, tmp_path: Path) -> None:
    picture, question = tmp_path / "house.png", tmp_path / "question.mp3"
    picture.write_bytes(png(examples.house()))
    question.write_bytes(examples.spoken_question())
    chat, *_ = ask(omni, "before it: words", picture, question)[-1]
    assert files(chat, "user")[-2:] == [".png", ".mp3"]
    assert texts(chat)[-1] == "Hello there"


def test_a_conversation_goes_on(omni: Client) -> None:
    before = len(ask(omni, "before it: words")[-1][0])
    chat, *_ = ask(omni, "before it: words")[-1]
    assert len(chat) == before + 3  # the question, its answer in words and in sound


def test_a_refusal_is_told_in_the_chat(omni: Client) -> None:
    chat, *_ = ask(omni, "before it: refuse")[-1]
    assert "Failed." in texts(chat)[-1]
    assert "too long" in texts(chat)[-1]


def test_an_empty_question_asks_nothing(omni: Client) -> None:
    assert [player for _, _, player, _ in ask(omni, " ") if isinstance(player, str)] == []


def test_a_text_is_spoken(omni: Client) -> None:
    job = omni.submit("words", "ethan", 1.0, "", api_name="/speak")
    updates = list(job)
    player, line, times = (last(updates, index) for index in range(3))
    samples = httpx.get(f"{omni.src}sound/{player}").content
    assert samples[:4] == b"\0\0\1\0"
    file = httpx.get(f"{omni.src}sound/{player}.wav")
    assert file.headers["content-type"] == "audio/wav"
    assert file.content[44:] == samples
    assert "Done." in line
    assert "TTFP" in times


@pytest.mark.parametrize("task", ["Transcribe", "Translate to English"])
def test_a_sound_is_written_down(omni: Client, tmp_path: Path, task: str) -> None:
    question = tmp_path / "question.mp3"
    question.write_bytes(examples.spoken_question())
    job = omni.submit(handle_file(str(question)), task, "", api_name="/transcribe")
    updates = list(job)
    assert last(updates, 0) == "Hello there"
    assert "Done." in last(updates, 1)


def test_a_dead_server_is_told_wherever_it_is_asked(dead: Client, tmp_path: Path) -> None:
    sentence = f"The server at {DEAD} does not answer."
    head = dead.predict(None, None, api_name="/look")[0]
    chat = ask(dead, "words", chosen=UNKNOWN)[-1][0]
    spoken = list(dead.submit("words", None, 1.0, "", api_name="/speak"))[-1][1]
    made = last(list(make(dead, "a boat")), 1)
    for told in (head, texts(chat)[-1], spoken, made):
        assert sentence in told
        assert "Traceback" not in told
    assert visible_tabs(dead) == [True, False, False, False, False, False, False]


def test_the_page_names_no_other_host_to_load_from(omni: Client) -> None:
    html = httpx.get(omni.src).text
    loaded = re.findall(r"""<(?:script|link|img)[^>]+(?:src|href)=["']([^"']+)""", html)
    assert loaded
    assert [url for url in loaded if "//" in url] == []
    assert "fonts.googleapis" not in httpx.get(f"{omni.src}theme.css").text
    config = httpx.get(f"{omni.src}config").json()
    assert config["analytics_enabled"] is False


def test_a_sound_that_is_gone_is_a_404(omni: Client) -> None:
    assert httpx.get(f"{omni.src}sound/none").status_code == 404


def test_a_page_that_connects_has_no_failure_in_its_head(omni: Client) -> None:
    components = httpx.get(f"{omni.src}config").json()["components"]
    (head,) = (one for one in components if one["props"].get("elem_id") == "head")
    assert "Connecting to the server." in head["props"]["value"]
    assert "alert" not in head["props"]["value"]
    assert "os-dead" not in head["props"]["value"]

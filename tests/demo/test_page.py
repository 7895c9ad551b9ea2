"""The page over gradio's own HTTP API: what a browser asks of it, and what it is told."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from gradio_client import Client, handle_file
from gradio_client.client import Job
from PIL import Image
from support.fake_stages import FRAMES, SAMPLES_PER_FRAME, WORDS
from support.gateway import IMAGES, MIXED, OMNI, RunningGateway, running_gateway
from support.page import running_page
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.demo import examples
from omnistage.demo.pictures import png
from omnistage.demo.tabs.chat_tab import DRAWING, EXAMPLES
from omnistage.stages.messages.to_stage import Request

DEAD = "http://127.0.0.1:9"
SOUND_BYTES = 2 * sum(FRAMES) * SAMPLES_PER_FRAME
SETTINGS = ("Text and speech", "ethan", "", None, None, None)
UNKNOWN = ("Text", None, "", None, None, None)  # what a page has that has learnt nothing


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> None:
    """Not looked at here: the page keeps its connections to the gateway of this process."""


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Client]:
    """A client of the page for a server."""
    with running_page(url) as page:
        client = Client(page, verbose=False, analytics_enabled=False, download_files=str(folder))
        try:
            client.predict(None, None, api_name="/look")  # as the page does when it is opened
            yield client
        finally:
            client.close()


@pytest.fixture(scope="module")
def omni_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def omni(
    omni_gateway: RunningGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with opened(omni_gateway.url, tmp_path_factory.mktemp("page")) as client:
        yield client


@pytest.fixture(scope="module")
def image_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), IMAGES) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def images(
    image_gateway: RunningGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with opened(image_gateway.url, tmp_path_factory.mktemp("page")) as client:
        yield client


@pytest.fixture(scope="module")
def video_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    stages = {"camera": {"kind": "diffusers"}}
    graph = {**IMAGES, "stages": stages, "outputs": {"video": "camera"}}
    with running_gateway(tmp_path_factory.mktemp("gateway"), graph) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def videos(
    video_gateway: RunningGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with opened(video_gateway.url, tmp_path_factory.mktemp("page")) as client:
        yield client


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with opened(DEAD, tmp_path_factory.mktemp("page")) as client:
        yield client


def texts(chat: Any) -> list[str]:
    """What the bubbles of a chat say."""
    return [part["text"] for one in chat for part in one["content"] if part["type"] == "text"]


def files(chat: Any, role: str) -> list[str]:
    bubbles = [one for one in chat if one["role"] == role]
    parts = [part for one in bubbles for part in one["content"]]
    return [Path(part["file"]).suffix for part in parts if part["type"] == "file"]


def last(updates: list[Any], index: int) -> Any:
    """The last value of one output; updates may leave it as it is."""
    values = [one[index] for one in updates]
    return [one for one in values if not is_skip(one)][-1]


def is_skip(value: Any) -> bool:
    return isinstance(value, dict) and "__type__" in value and "value" not in value


def ask(client: Client, text: str, *attached: Path, chosen: Any = SETTINGS) -> list[Any]:
    """All updates of one answer: chat, question, player, times."""
    box = {"text": text, "files": [handle_file(str(path)) for path in attached]}
    job = client.submit(box, *chosen, api_name="/chat")
    return list(job)


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


def visible_tabs(client: Client) -> list[bool]:
    """Return whether each tab is visible, in the order of the page."""
    call = f"{client.src}gradio_api/call/look"
    event = httpx.post(call, json={"data": [None, None]}).json()["event_id"]
    (data,) = re.findall(r"^data: (.*)$", httpx.get(f"{call}/{event}").text, re.MULTILINE)
    return [update["visible"] for update in json.loads(data) if is_tab(update)]


def is_tab(update: Any) -> bool:
    return isinstance(update, dict) and update.keys() == {"visible", "__type__"}


def test_tabs_that_a_server_cannot_serve_are_hidden(
    omni: Client, images: Client, videos: Client
) -> None:
    assert visible_tabs(omni) == [True, True, False, False, False, True, True]
    assert visible_tabs(images) == [True, False, True, True, False, False, False]
    assert visible_tabs(videos) == [False, False, False, False, True, False, False]


def make(client: Client, prompt: str) -> Job:
    return client.submit(prompt, "", "auto", 1, 2, None, None, api_name="/make_picture")


def test_a_picture_is_made(images: Client) -> None:
    updates = list(make(images, "a boat"))
    (made,) = last(updates, 0)["value"]
    with Image.open(made["image"]) as picture:
        assert picture.size == (48, 32)
    assert "Done in" in last(updates, 1)
    assert "First image" in last(updates, 2)


def test_a_chat_is_answered_by_a_picture(images: Client) -> None:
    chosen = ("Text and image", None, "", None, None, None)
    updates = ask(images, "a boat", chosen=chosen)
    assert files(last(updates, 0), "assistant") == [".png"]
    assert "First image" in last(updates, 3)


def test_a_server_that_speaks_and_draws_has_an_example_of_it_and_speaks_unless_asked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        running_gateway(tmp_path_factory.mktemp("gateway"), MIXED) as gateway,
        opened(gateway.url, tmp_path_factory.mktemp("page")) as client,
    ):
        *_, mode, _, _, conversation = client.predict(None, None, api_name="/look")
        assert mode["value"] == "Text and speech"
        assert [one["display_text"] for one in conversation["examples"]] == [*EXAMPLES, DRAWING[0]]
        chosen = ("Text, speech and image", "ethan", "", None, None, None)
        updates = ask(client, "a boat", chosen=chosen)
    assert files(last(updates, 0), "assistant") == [".png", ".wav"]


def test_steps_and_a_preview_are_shown_and_stop_ends_it_at_the_server(
    images: Client, image_gateway: RunningGateway
) -> None:
    job = make(images, "hang")
    gallery, progress, _ = next(one for one in job if "Step 4 of 4." in one[1])
    assert [one["caption"] for one in gallery["value"]] == ["preview"]
    assert '<progress value="4" max="4">' in progress
    assert image_gateway.do(lambda: image_gateway.stages.running)
    job.cancel()
    image_gateway.wait_until_idle()


def requests_to(gateway: RunningGateway) -> list[Chunk[Request]]:
    return gateway.stages.stages["dit"].opened


def test_a_picture_is_edited_below_a_mask(
    images: Client, image_gateway: RunningGateway, tmp_path: Path
) -> None:
    house, layer = tmp_path / "house.png", tmp_path / "layer.png"
    house.write_bytes(png(examples.house()))
    painted = Image.new("RGBA", (384, 256), (0, 0, 0, 0))
    painted.paste("red", (0, 64, 384, 128))
    layer.write_bytes(png(painted))
    drawn = {"background": handle_file(str(house)), "layers": [handle_file(str(layer))]}
    drawn |= {"composite": handle_file(str(house))}
    job = images.submit(drawn, "snow", None, None, 1, None, None, api_name="/edit_picture")
    updates = list(job)
    assert len(last(updates, 0)["value"]) == 1
    assert "Done in" in last(updates, 1)
    tensors = requests_to(image_gateway)[-1].tensors
    assert tensors["image0"].shape == (256, 384, 3)
    repainted = tensors["mask"].numpy() > 0
    assert repainted[64:128].all()
    assert not repainted[:64].any()
    assert not repainted[128:].any()


def test_a_video_is_made(videos: Client) -> None:
    numbers = ("64", "48", None, "5", "8", None, None)
    updates = list(videos.submit("a boat", None, *numbers, api_name="/make_video"))
    file, line, times = (last(updates, index) for index in range(3))
    with av.open(file) as container:
        (stream,) = container.streams.video
        assert (stream.width, stream.height, stream.frames, stream.average_rate) == (64, 48, 5, 8)
    assert "Done." in line
    assert "Whole answer" in times


def test_a_video_that_takes_long_shows_its_progress_and_stop_ends_its_job(
    videos: Client, video_gateway: RunningGateway
) -> None:
    numbers = ("64", "48", "1", None, "8", None, None)
    job = videos.submit("hang", None, *numbers, api_name="/make_video")
    wait_until(lambda: any("50 %" in one[1] for one in job.outputs()))
    (kept,) = httpx.get(f"{video_gateway.url}/v1/videos").json()["data"]
    assert (kept["status"], kept["num_frames"]) == ("in_progress", 8)
    assert job.cancel()
    wait_until(lambda: not httpx.get(f"{video_gateway.url}/v1/videos").json()["data"])
    video_gateway.wait_until_idle()


def test_a_video_begins_with_a_given_frame(
    videos: Client, video_gateway: RunningGateway, tmp_path: Path
) -> None:
    Image.new("RGB", (64, 48)).save(tmp_path / "first.png")
    first = handle_file(tmp_path / "first.png")
    numbers = ("64", "48", None, "5", None, None, None)
    updates = list(videos.submit("a boat", first, *numbers, api_name="/make_video"))
    assert "Done." in last(updates, 1)
    chunk = video_gateway.stages.stages["camera"].opened[-1]
    (medium,) = chunk.message.given_media
    assert (medium.field, chunk.tensors[medium.tensor].numpy().shape) == ("image", (48, 64, 3))


def test_a_video_that_fails_says_why(videos: Client) -> None:
    numbers = (None,) * 7
    updates = list(videos.submit("refuse", None, *numbers, api_name="/make_video"))
    assert "makes no video" in last(updates, 1)


@pytest.mark.parametrize(("prompt", "frames"), [(" ", None), ("a boat", "many")])
def test_a_video_that_cannot_be_asked_for_is_refused_on_the_page(
    videos: Client, prompt: str, frames: str | None
) -> None:
    numbers = (None, None, None, frames, None, None, None)
    updates = list(videos.submit(prompt, None, *numbers, api_name="/make_video"))
    assert "os-failure" in last(updates, 1)


def test_a_picture_of_nothing_is_refused_before_the_server_is_asked(images: Client) -> None:
    assert "Describe the image." in last(list(make(images, " ")), 1)


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

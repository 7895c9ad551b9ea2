"""The page: images and videos that are made, edited and shown, and examples of tabs."""

from collections.abc import Iterator
from pathlib import Path

import av
import httpx
import pytest
from gradio_client import Client, handle_file
from PIL import Image
from support.gateway.serving import IMAGES, MIXED, RunningGateway, running_gateway
from support.servers.page_client import ask, files, last, make, opened, visible_tabs
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.demo import examples
from omnistage.demo.pictures import png
from omnistage.demo.tabs.chat_tab import DRAWING, EXAMPLES
from omnistage.stages.messages.to_stage import Request


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> None:
    """Not looked at here: the page keeps its connections to the gateway of this process."""


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


def test_tabs_that_a_server_cannot_serve_are_hidden(
    omni: Client, images: Client, videos: Client
) -> None:
    assert visible_tabs(omni) == [True, True, False, False, False, True, True]
    assert visible_tabs(images) == [True, False, True, True, False, False, False]
    assert visible_tabs(videos) == [False, False, False, False, True, False, False]


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

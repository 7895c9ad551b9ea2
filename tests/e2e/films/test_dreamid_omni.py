"""DreamID-Omni over HTTP: videos with speech, of faces and voices."""

import asyncio
import io
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from references.dreamid_omni_scenes import (
    NEGATIVE,
    RATE_HZ,
    SCENES,
    face_file,
    files_of,
    voice_file,
)
from support.api.prompts import data_url
from support.faults.chaos import ready_again
from support.faults.leaving import all_leave
from support.faults.shared_forwards import pid_of
from support.faults.stuck_decoders import HAS_BEGUN, STUCK_ENCODING_SIZE, STUCK_SIZE, Size
from support.oracles.dreamid_omni import RecordedScenes, extra_of
from support.servers.server import TinyServer, running_server
from support.servers.snapshots import MADE_STEPS
from support.waiting import until

from omnistage.server.media.video.mp4 import encode
from omnistage.server.runtime.request import ImageOutput
from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine

FPS, TIMEOUT_S = 24, 300
LOSS = 12.0  # of 255, in mean, if a rounding makes h264 code noise otherwise
FACE = data_url("image/png", face_file((40, 40), 0))
VOICE = data_url("audio/wav", voice_file(2.0, 0))
SILENCE = data_url("audio/wav", voice_file(2.0, 0)[:44] + bytes(2 * 2 * RATE_HZ))
SMALL: dict[str, Any] = {
    "prompt": "<sub1> says <S>Yes.<E>",
    "size": "32x32",
    "num_frames": 5,
    "num_inference_steps": 2,
    "input_reference": FACE,
    "audio_reference": VOICE,
}
ENDLESS = {**SMALL, "size": "64x64", "num_frames": 25, "num_inference_steps": 1000}  # minutes


@pytest.fixture(scope="module")
def recorded(tiny_dreamid_omni: Path) -> RecordedScenes:
    return RecordedScenes(tiny_dreamid_omni)


@pytest.fixture(scope="module")
def server(
    tiny_dreamid_omni: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    """The folder alone, without a graph file."""
    log = tmp_path_factory.mktemp("dreamid") / "log"
    with running_server(str(tiny_dreamid_omni), log) as running:
        yield running


async def post(server: TinyServer, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        return await client.post(f"{server.url}/v1/videos/sync", json=body)


async def make(server: TinyServer, name: str) -> httpx.Response:
    """Ask for a recorded video."""
    scene = SCENES[name]
    faces, voices = files_of(scene)
    return await post(
        server,
        prompt=scene.prompt,
        negative_prompt=NEGATIVE[0],
        size=f"{scene.size[1]}x{scene.size[0]}",
        num_frames=scene.num_frames,
        num_inference_steps=scene.num_steps,
        guidance_scale=scene.scales[0],
        seed=scene.seed,
        input_reference=[data_url("image/png", one) for one in faces],
        audio_reference=[{"audio_url": data_url("audio/wav", one)} for one in voices],
        extra=extra_of(scene),
    )


def check(answer: httpx.Response, name: str, recorded: RecordedScenes) -> None:
    """Compare what h264 and AAC left of a recorded video: both are lossy."""
    assert answer.status_code == 200, answer.text
    wanted = recorded.frames(name)
    with av.open(io.BytesIO(answer.content)) as container:
        video, audio = container.streams
        assert (video.average_rate, video.frames) == (FPS, len(wanted))
        assert (audio.codec.name, audio.rate, audio.layout.name) == ("aac", RATE_HZ, "mono")
        samples = np.concatenate([one.to_ndarray()[0] for one in container.decode(audio)])
    height, width = wanted.shape[1:3]
    images = [ImageOutput(one.tobytes(), width, height) for one in wanted]
    lossy = frames_of(encode(images, FPS)).astype(int)
    assert np.abs(frames_of(answer.content) - lossy).mean() < LOSS
    other = recorded.samples(name)[: len(samples)]
    one = samples[: len(other)]
    assert (one * other).sum() / (np.linalg.norm(one) * np.linalg.norm(other)) > 0.8


def frames_of(data: bytes) -> npt.NDArray[np.uint8]:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


async def test_videos_alone_and_at_once_are_the_authors(
    server: TinyServer, recorded: RecordedScenes
) -> None:
    check(await make(server, "two"), "two", recorded)
    names = ["one", "same size", "longer", "other scales"]
    answers = await asyncio.gather(*(make(server, name) for name in names))
    for name, answer in zip(names, answers, strict=True):
        check(answer, name, recorded)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_reference": [FACE] * 3}, "input_reference"),
        ({"audio_reference": [VOICE] * 3}, "audio_reference"),
        ({"audio_reference": SILENCE}, "audio_reference"),
        ({"audio_reference": data_url("audio/wav", voice_file(1.0, 0))}, "audio_reference"),
        ({"audio_reference": FACE}, "audio_reference.audio_url"),
        ({"input_reference": VOICE}, "input_reference.image_url"),
        ({"input_reference": None}, "input_reference"),
        ({"audio_reference": None}, "audio_reference"),
        ({"audio": VOICE}, "audio"),
        ({"last_image": FACE}, "last_image"),
        ({"size": "48x32"}, "size"),
        ({"num_frames": 6}, "num_frames"),
        ({"num_frames": 601}, "num_frames"),
        ({"fps": 25}, "fps"),
        ({"extra": {"image_guidance": 2.0}}, "extra.image_guidance"),
    ],
)
async def test_what_cannot_be_made_is_refused_by_name(
    fields: dict[str, Any], param: str, server: TinyServer
) -> None:
    answer = await post(server, **{**SMALL, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def make_without_end(server: TinyServer, seed: int) -> httpx.Response:
    return await post(server, **ENDLESS, seed=seed)


@pytest.mark.parametrize("counter", ["", MADE_STEPS], ids=["its encoders", "its steps"])
async def test_clients_that_hang_up_leave_nothing(
    counter: str, server: TinyServer, recorded: RecordedScenes
) -> None:
    await all_leave(server, partial(make_without_end, server), "dit", counter=counter)
    check(await make(server, "longer"), "longer", recorded)


@pytest.mark.repeat  # of tests/e2e/images/test_omnigen2.py
async def test_a_killed_stage_is_its_requests_error_and_starts_again(
    server: TinyServer, recorded: RecordedScenes
) -> None:
    await ready_again(server)
    running = [asyncio.ensure_future(make_without_end(server, seed)) for seed in range(2)]
    await until(
        lambda: (
            any(task.done() for task in running)
            or server.health()["dit"]["running"] == len(running)
        )
    )
    assert not any(task.done() for task in running)
    os.kill(pid_of(server, "dit", "worker"), signal.SIGKILL)
    for answer in await asyncio.gather(*running):
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "stage_unavailable"
        assert "dit" in answer.json()["error"]["message"]
    await ready_again(server)
    check(await make(server, "other scales"), "other scales", recorded)


@pytest.fixture(scope="module")
def begun_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that a VAE writes which has begun and has no end."""
    return tmp_path_factory.mktemp("stuck") / "begun"


@pytest.fixture
def has_begun(begun_file: Path) -> Callable[[], bool]:
    begun_file.unlink(missing_ok=True)
    return begun_file.exists


@pytest.fixture(scope="module")
def stuck_server(tiny_dreamid_omni: Path, begun_file: Path) -> Iterator[TinyServer]:
    document = yaml.safe_load((GRAPHS / "dreamid_omni_tiny.yaml").read_text())
    dit = document["stages"]["dit"]
    dit["engine"]["pipeline_class"] = "support.faults.stuck_decoders.StuckDreamIDOmni"
    dit["environment"] = {HAS_BEGUN: str(begun_file)}
    graph = begun_file.parent / "graph.yaml"
    graph.write_text(yaml.safe_dump(document))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        log, options = begun_file.parent / "log", ("--model", str(tiny_dreamid_omni))
        with running_server(str(graph), log, *options) as running:
            yield running


@pytest.mark.repeat  # of tests/e2e/images/test_omnigen2.py
@pytest.mark.parametrize("size", [STUCK_ENCODING_SIZE, STUCK_SIZE], ids=["encodes", "decodes"])
async def test_a_stage_may_be_killed_while_it(
    size: Size, stuck_server: TinyServer, has_begun: Callable[[], bool], recorded: RecordedScenes
) -> None:
    """The kill follows on the file that is written inside of what has no end."""
    await ready_again(stuck_server)
    generations = stuck_server.generations()
    body = {**SMALL, "size": "{}x{}".format(*size)}
    running = [asyncio.ensure_future(post(stuck_server, **body, seed=seed)) for seed in range(2)]

    def all_are_there() -> bool:
        return has_begun() and bool(stuck_server.health()["dit"]["running"] == len(running))

    await until(lambda: any(task.done() for task in running) or all_are_there())
    assert not any(task.done() for task in running)
    os.kill(pid_of(stuck_server, "dit", "worker"), signal.SIGKILL)
    for answer in await asyncio.gather(*running):
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "stage_unavailable"
        assert "dit" in answer.json()["error"]["message"]
    await ready_again(stuck_server)
    check(await make(stuck_server, "other scales"), "other scales", recorded)
    assert stuck_server.generations() == {name: 1 + one for name, one in generations.items()}

"""Each row of the tables of fields in docs/migrating.md, sent to an endpoint and looked up."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from pipeline_classes import pipeline_classes
from support.api.doors import ONE_SHOT
from support.api.prompts import data_url, video_bytes
from support.gateway.serving import SYNTH, RunningGateway, making_videos, running_gateway
from support.gateway.taken_drawing import TakenDrawing
from support.media.pictures import mask_png, png
from support.media.sounds import tone, wav_of

from omnistage.server.tasks.audio_task import MEDIA as AUDIO_MEDIA
from omnistage.server.tasks.audio_task import GeneratedAudioRequest
from omnistage.server.tasks.videos.media import FIELDS
from omnistage.server.tasks.videos.schema import VideoRequest
from omnistage.stages.diffusion.request.arguments import call_arguments
from omnistage.stages.diffusion.request.extra import problem_of
from omnistage.stages.diffusion.request.tasks import PipelineTask, arguments_of
from omnistage.stages.diffusion.request.videos import COUNTS
from omnistage.stages.worker.failure import RequestError

TEXT = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
VIDEOS, SOUNDS = "Fields of videos", "Fields of sounds"
PATHS = {VIDEOS: "/v1/videos/sync", SOUNDS: "/v1/audio/generate"}
STAGES = {VIDEOS: "studio", SOUNDS: "synth"}
KNOWN = {
    VIDEOS: {*VideoRequest.model_fields, *FIELDS},
    SOUNDS: {*GeneratedAudioRequest.model_fields, *AUDIO_MEDIA},
}
PLAIN: Mapping[str, Mapping[str, Any]] = {
    VIDEOS: {"prompt": "a cat", "size": "32x32", "num_frames": 5},
    SOUNDS: {"input": "rain", "audio_length": 0.1},
}
IMAGE, AUDIO = data_url("image/png", png(16, 16)), data_url("audio/wav", wav_of(tone(0.05)))
MASK = data_url("image/png", mask_png(16, 16))
VIDEO = data_url("video/mp4", video_bytes(3, 16))
STEPS = {"num_inference_steps": 2}
GUIDED = {"guidance_scale": 2.0, "negative_prompt": "blur"}
REPAINTED = {"extra": {"mask_start_seconds": 1, "mask_end_seconds": 2}}
# What our cell says as a body, by its words; without one nothing of ours takes the field.
BODIES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    VIDEOS: {
        "the same; `seed`": {"negative_prompt": "blur", "seed": 3},
        "`seconds` or `num_frames`": {"seconds": 1, "num_frames": None},
        "`size`, or `width` and `height`": {"size": None, "width": 32, "height": 48},
        "`fps`": {"fps": 12},
        "its fields at the top level": {**STEPS, **GUIDED},
        "`input_reference`": {"input_reference": IMAGE},
        "`last_image`": {"input_reference": IMAGE, "last_image": IMAGE},
        "`reference_image`": {"reference_image": [IMAGE, IMAGE]},
        "`video`, at /v1/videos/edits too": {"video": VIDEO},
        "`control_video`, `mask`": {"video": VIDEO, "control_video": VIDEO, "mask": MASK},
        "`control_video`, `face_video`, `video`": {
            "control_video": VIDEO,
            "face_video": VIDEO,
            "video": VIDEO,
        },
        "`audio`": {"audio": AUDIO},
        "`audio: false`": {"audio": False},
        "the same": {**STEPS, "guidance_scale": 2.0, "true_cfg_scale": 3.0},
        '`extra: {"guidance_scale_2": 3}`': {"extra": {"guidance_scale_2": 3}},
        "the checkpoint's configuration": {},
        "several jobs": {},
        "not done": {},
    },
    SOUNDS: {
        "`input`": {"input": "thunder"},
        "`audio_length`": {"audio_length": 0.2},
        "`audio_start`": {"audio_start": 0.1},
        "the same; `seed`": {**GUIDED, "seed": 3},
        "`num_inference_steps`": STEPS,
        "`response_format`": {"response_format": "flac"},
        "`lyrics`": {"lyrics": "la"},
        "`audio`": {"audio": AUDIO},
        '`extra: {"mask_start_seconds": 1, "mask_end_seconds": 2}`': REPAINTED,
        "`extra`": {"extra": {"bpm": 120}},
    },
}
# Arguments that the table has without a field of a request beside them.
NO_FIELD = {"num_videos_per_prompt"}


def rows(title: str) -> dict[str, list[str]]:
    """The other cells of each row of a table, by its last one."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return {cells[-1]: cells[:-1] for cells in lines[2:]}


def names(cell: str) -> set[str]:
    return {name for one in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"^\w+", one)}


CASES = [(title, here) for title in PATHS for here in BODIES[title]]


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningGateway]]:
    folder = tmp_path_factory.mktemp
    with (
        running_gateway(folder("videos"), making_videos("studio"), arena_mb=16) as videos,
        running_gateway(folder("sounds"), SYNTH, arena_mb=16) as sounds,
    ):
        yield {VIDEOS: videos, SOUNDS: sounds}


def ask(gateway: RunningGateway, title: str, body: Mapping[str, Any]) -> httpx.Response:
    with httpx.Client(base_url=gateway.url, timeout=600, limits=ONE_SHOT) as client:
        sent = {name: one for name, one in body.items() if one is not None}
        return client.post(PATHS[title], json=sent)


@pytest.mark.parametrize("title", PATHS)
def test_each_row_has_a_case(title: str) -> None:
    assert rows(title).keys() == BODIES[title].keys()


@cache
def pipelines() -> list[Any]:
    """An empty object of each class, and of each task over a class's components."""
    return [object.__new__(made) for made in pipeline_classes() if "__call__" in dir(made)]


def becomes(argument: str, taken: TakenDrawing, seed: int | None) -> bool:
    """Return whether some class's call gets the argument of a request that a stage has got."""
    for pipeline in pipelines():
        known = arguments_of(pipeline)
        if argument not in known:
            continue
        places = PipelineTask.of(pipeline).places
        if any(
            places[one.field].argument == argument for one in taken.media if one.field in places
        ):
            return True
        extra = taken.fields.get("extra") or {}
        if argument in extra and not problem_of(pipeline, argument):
            return True
        for field, value in taken.fields.items():
            try:
                body = {"prompt": "a", "n": 1, field: value}
                given = call_arguments(pipeline, body, seed)
            except RequestError:
                continue
            if argument in given:
                return True
    return False


@pytest.mark.parametrize(("title", "here"), CASES)
def test_our_field_reaches_the_argument_of_its_row(
    title: str, here: str, gateways: dict[str, RunningGateway]
) -> None:
    body = {**PLAIN[title], **BODIES[title][here]}
    answer = ask(gateways[title], title, body)
    assert answer.status_code == 200, answer.text
    assert "x-omnistage-warning" not in answer.headers
    taken = TakenDrawing(gateways[title].stages.stages[STAGES[title]])
    cell = rows(title)[here][2]
    same = BODIES[title][here].keys() - {"seed"} if cell.startswith("the same") else set()
    for argument in names(cell) | same:
        if argument in NO_FIELD:
            assert argument in COUNTS
        else:
            assert becomes(argument, taken, body.get("seed")), argument


FOREIGN = [
    (title, name)
    for title in PATHS
    for name in sorted(
        {one for cells in rows(title).values() for c in cells[:2] for one in names(c)}
    )
    if name not in KNOWN[title]
]


@pytest.mark.parametrize(("title", "name"), FOREIGN)
def test_a_field_of_another_server_is_no_silence(
    title: str, name: str, gateways: dict[str, RunningGateway]
) -> None:
    answer = ask(gateways[title], title, {**PLAIN[title], name: 1})
    told = answer.headers.get("x-omnistage-warning", "") + answer.text * (answer.status_code != 200)
    assert name in told

"""Audio of pipelines on its whole way: HTTP, stage, file. Its samples are the bare pipeline's."""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import torch
from diffusers import (
    LTX2ConditionPipeline,
    LTX2ImageToVideoPipeline,
    LTX2Pipeline,
    StableAudio3AudioToAudioPipeline,
    StableAudio3InpaintPipeline,
)
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from PIL import Image
from support.api.prompts import data_url
from support.media.pictures import file_of
from support.media.sounds import wav_of
from support.servers.image_requests import bare_pipeline, picture_server
from support.servers.server import TinyServer
from support.tiny_pipelines import quiet
from support.tiny_pipelines.films import FILM_RATE, GUIDED
from support.tiny_pipelines.sounds import RATE, make_sound

from omnistage.server.media.audio.track import Track
from omnistage.server.media.video.mp4 import encode
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.audio_task import GeneratedAudioRequest
from omnistage.stages.diffusion.request.outputs import to_uint8
from omnistage.stages.diffusion.request.tasks import arguments_of

pytestmark = pytest.mark.engine

SEED = 7
STEPS = {"num_inference_steps": 2}
WAVE = np.random.default_rng(0).integers(-9000, 9000, (RATE // 2, 2), np.int16)
GIVEN = torch.from_numpy(WAVE.T / np.float32(32768))[None]
REPAINTED = {"mask_start_seconds": 0.1, "mask_end_seconds": 0.3}
SUNG = "Night falls on the sea, and I sing. " * 4
NOISED = {"init_noise_level": 0.5}


@dataclass(frozen=True)
class Case:
    """Fields of a request, and the same as arguments of a bare call of a class."""

    fields: Mapping[str, Any]
    arguments: Mapping[str, Any]
    made: Any = None


# Other pipelines: tests/stages/diffusion/request/test_audio_pipelines.py.
CASES: Mapping[str, Mapping[str, Case]] = {
    "stable-audio-3": {
        "words": Case({}, {"duration": 0.5}),
        "audio to audio": Case(
            {"audio": data_url("audio/wav", wav_of(WAVE, RATE)), "extra": NOISED},
            {"duration": 0.5, "audio": GIVEN, **NOISED},
            StableAudio3AudioToAudioPipeline,
        ),
        "inpainting": Case(
            {"audio": data_url("audio/wav", wav_of(WAVE, RATE)), "extra": REPAINTED},
            {"duration": 0.5, "audio": GIVEN, **REPAINTED},
            StableAudio3InpaintPipeline,
        ),
    },
    "ace-step": {
        "words": Case({}, {"audio_duration": 0.5}),
        "lyrics": Case({"lyrics": SUNG}, {"audio_duration": 0.5, "lyrics": SUNG}),
    },
}


@dataclass(frozen=True)
class ServedSound:
    """A server of a tiny pipeline of audio, and the pipeline's folder."""

    name: str
    folder: Path
    server: TinyServer

    def ask(self, body: Any) -> httpx.Response:
        """Send a body, which may be JSON that `json` would not write."""
        data = body if isinstance(body, str) else json.dumps(body)
        headers = {"content-type": "application/json"}
        url = f"{self.server.url}/v1/audio/generate"
        return httpx.post(url, content=data.encode(), headers=headers, timeout=600)


@pytest.fixture(
    scope="module",
    params=["stable-audio-3", pytest.param("ace-step", marks=pytest.mark.repeat)],
)
def sound(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedSound]:
    folder = tmp_path_factory.mktemp("sound")
    make_sound(request.param).save_pretrained(folder / "model")
    with picture_server("diffusers.yaml", folder / "model", folder, warm_up=STEPS) as server:
        yield ServedSound(request.param, folder / "model", server)


def test_generated_audio_is_the_bare_pipeline_s(sound: ServedSound) -> None:
    name, folder = sound.name, sound.folder
    common = {"input": "a slow piano", "audio_length": 0.5, "seed": SEED, **STEPS}
    answers = {which: sound.ask({**common, **case.fields}) for which, case in CASES[name].items()}
    models = httpx.get(f"{sound.server.url}/v1/models").json()["data"]
    assert models[0]["output_modalities"] == ["audio"]
    bare = bare_pipeline(folder)
    heard = []
    for which, case in CASES[name].items():
        answer = answers[which]
        assert answer.status_code == 200, answer.text
        with av.open(io.BytesIO(answer.content)) as container:
            (stream,) = container.streams
            assert (stream.rate, stream.channels) == (RATE, 2)
            parts = [one.to_ndarray() for one in container.decode(stream)]
        samples = np.concatenate(parts, axis=1).reshape(-1, 2).T / 32767
        pipeline = bare if case.made is None else quiet(case.made(**bare.components))
        with torch.inference_mode():
            made = pipeline(
                prompt=common["input"],
                generator=torch.Generator().manual_seed(SEED),
                output_type="np",
                **STEPS,
                **case.arguments,
            ).audios[0]
        assert np.abs(samples - made.clip(-1, 1)).max() < 1e-4
        heard.append(samples)
    assert all(np.abs(one - heard[0]).max() > 1e-3 for one in heard[1:])


MILLION = "[" + "1," * 999_999 + "1]"
# Values of any kind, as JSON: what a field does not take, and what is too large for it.
ODD = (
    *("true", "-1", "1e308", "-1e308", "1e999", "NaN", "1" + 400 * "0", '""', '"x"', "[]", "[[1]]"),
    *('{"__class__": "a"}', '{"a": {"b": [1]}}', json.dumps("\0"), json.dumps(33_000 * "a")),
    MILLION,
)
STRIDE = 5
NAMES = (*GeneratedAudioRequest.model_fields, "audio")


def odd_bodies(pipeline: Any) -> Iterator[tuple[str, str]]:
    """Yield bodies with values in each field, and below `extra` in each argument, in turn: every
    kind of value in one of five fields.
    """
    plain = {"input": "rain", "audio_length": 0.1, **STEPS}
    for number, name in enumerate(NAMES):
        rest = json.dumps({one: value for one, value in plain.items() if one != name})
        for odd in ODD[number % STRIDE :: STRIDE]:
            yield name, f'{rest[:-1]}, "{name}": {odd}}}'
    head = json.dumps(plain)[:-1]
    for number, name in enumerate((*arguments_of(pipeline), "__class__", "__call__", "self")):
        for odd in ODD[number % STRIDE :: STRIDE]:
            yield f"extra.{name}", f'{head}, "extra": {{"{name}": {odd}}}}}'


@pytest.mark.repeat
def test_odd_values_are_refused_and_end_no_stage(sound: ServedSound) -> None:
    plain = {"input": "rain", "audio_length": 0.1, "seed": SEED, **STEPS}
    before = sound.ask(plain)
    assert before.status_code == 200
    pipelines = [case.made for case in CASES[sound.name].values() if case.made is not None]
    for made in pipelines or [type(bare_pipeline(sound.folder))]:
        for name, body in odd_bodies(object.__new__(made)):
            answer = sound.ask(body)
            assert answer.status_code in (200, 400, 404), (name, body[:200], answer.text)
    hour = Track(SampleFormat(RATE, 1), bytes(2 * RATE * 3600)).encoded("opus")
    answer = sound.ask({**plain, "audio": data_url("audio/ogg", hour)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "audio.audio_url")
    assert sound.ask(plain).content == before.content
    assert sound.server.health()["dit"]["restarts"] == 0


SIZE = {"height": 32, "width": 32, "num_frames": 9}
FPS = 25
LOSS = 20.0  # of 255, in mean, if a rounding makes h264 code noise otherwise; others differ by 49
FIRST, LAST = (np.random.default_rng(one).integers(0, 256, (32, 32, 3), np.uint8) for one in (1, 2))
MEDIA = {"input_reference": FIRST, "last_image": LAST}


@dataclass(frozen=True)
class Film:
    """A model, its rate of audio, and what bare calls get of words and of images."""

    engine: Mapping[str, Any]
    layout: str
    rate: int
    of_media: Mapping[str, tuple[Any, Mapping[str, Any]]]

    def bare(self, folder: Path, media: str) -> Any:
        """Return what the class makes by itself."""
        made, arguments = self.of_media[media]
        defaults = self.engine.get("call_defaults", {})
        with torch.inference_mode():
            return quiet(made(**bare_pipeline(folder).components))(
                prompt="rain at night",
                generator=torch.Generator().manual_seed(SEED),
                frame_rate=FPS,
                output_type="np",
                **SIZE,
                **STEPS,
                **defaults,
                **arguments,
            )


def condition(pixels: Any, index: int) -> LTX2VideoCondition:
    return LTX2VideoCondition(Image.fromarray(pixels), index)


WORDS, IMAGE, ENDS = "", "input_reference", "input_reference last_image"
# Another: tests/stages/diffusion/request/test_films.py.
FILMS: Mapping[str, Film] = {
    "ltx2": Film(
        {"call_defaults": GUIDED},
        "stereo",
        FILM_RATE,
        {
            WORDS: (LTX2Pipeline, {}),
            IMAGE: (LTX2ImageToVideoPipeline, {"image": Image.fromarray(FIRST)}),
            ENDS: (
                LTX2ConditionPipeline,
                {"conditions": [condition(FIRST, 0), condition(LAST, -1)]},
            ),
        },
    ),
}


@pytest.mark.parametrize("name", FILMS)
def test_a_video_of_words_and_of_images_has_its_audio(name: str, tmp_path: Path) -> None:
    folder, film = tmp_path / name, FILMS[name]
    make_sound(name).save_pretrained(folder)
    body = {"prompt": "rain at night", **SIZE, **STEPS, "fps": FPS, "seed": SEED}
    answers = {}
    with picture_server("diffusers.yaml", folder, tmp_path, warm_up=SIZE, **film.engine) as server:
        url = f"{server.url}/v1/videos/sync"
        for media in film.of_media:
            fields = {
                one: data_url("image/png", file_of(Image.fromarray(MEDIA[one])))
                for one in media.split()
            }
            answers[media] = httpx.post(url, json={**body, **fields}, timeout=600)
        silent = httpx.post(url, json={**body, "audio": False}, timeout=600)
    for media, answer in answers.items():
        assert answer.status_code == 200, answer.text
        wanted = film.bare(folder, media)
        pixels = [ImageOutput(one.tobytes(), 32, 32) for one in to_uint8(wanted.frames[0])]
        frames, samples = read(answer.content, film)
        lossy = read_frames(encode(pixels, FPS)).astype(int)  # a pixel of 1 more is coded otherwise
        assert np.abs(frames - lossy).mean() < LOSS
        check_sound(samples, np.atleast_2d(np.asarray(wanted.audio[0])))
    assert len({answer.content for answer in answers.values()}) == len(answers)
    assert silent.status_code == 200
    with av.open(io.BytesIO(silent.content)) as container:
        assert [one.type for one in container.streams] == ["video"]


def read(data: bytes, film: Film) -> tuple[Any, Any]:
    """Return a file's frames and samples [channels, n], whose durations are equal."""
    with av.open(io.BytesIO(data)) as container:
        video, audio = container.streams
        assert (video.codec.name, video.frames, video.average_rate) == ("h264", 9, FPS)
        assert (audio.codec.name, audio.rate, audio.layout.name) == ("aac", film.rate, film.layout)
        lengths = [float(one.duration * one.time_base) for one in (video, audio)]
        assert lengths == pytest.approx([9 / FPS, 9 / FPS], abs=0.5 / FPS)
        samples = np.concatenate([one.to_ndarray() for one in container.decode(audio)], axis=1)
    return read_frames(data), samples


def read_frames(data: bytes) -> Any:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


def check_sound(samples: Any, wanted: Any) -> None:
    """Compare what AAC left of a bare call's samples: it is lossy."""
    num = min(samples.shape[1], wanted.shape[1])
    one, other = samples[:, :num], wanted[:, :num].clip(-1, 1)
    likeness = (one * other).sum() / (np.linalg.norm(one) * np.linalg.norm(other))
    assert likeness > 0.8

"""Questions for the tiny server, each in OpenAI's form and in the reference's."""

import base64
import io
import wave
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image
from support.media.recorded import decoded_frames

RATE = 16000
VIDEO_FPS = 4


@dataclass(frozen=True)
class Question:
    """`messages` for the server; `turns` and media for transformers' processor."""

    name: str
    messages: list[dict[str, Any]]
    turns: list[dict[str, Any]]
    media: dict[str, list[Any]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # of the processor


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def image_part(image: Image.Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return {"type": "image_url", "image_url": {"url": data_url("image/png", buffer.getvalue())}}


def sound(num_samples: int) -> npt.NDArray[np.int16]:
    """A tone with a little noise; a multiple of 160 samples."""
    assert num_samples % 160 == 0
    noise = np.random.default_rng(num_samples).standard_normal(num_samples)
    wave_form = 0.3 * np.sin(np.arange(num_samples) * 0.05) + 0.02 * noise
    samples: npt.NDArray[np.int16] = (wave_form * 32767).astype(np.int16)
    return samples


def sound_part(samples: npt.NDArray[np.int16]) -> dict[str, Any]:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def video_bytes(
    num_frames: int,
    size: int,
    samples: npt.NDArray[np.int16] | None = None,
    form: str = "mp4",
    seed: int | None = None,
) -> bytes:
    """A file of moving noise at four frames a second, with these samples as they are."""
    buffer = io.BytesIO()
    random = np.random.default_rng(num_frames if seed is None else seed)
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream("mpeg4", rate=VIDEO_FPS)
        if samples is not None:
            track = container.add_stream("pcm_s16le", rate=RATE)
            track.layout = "mono"
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for _ in range(num_frames):
            pixels = random.integers(0, 255, (size, size, 3), dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
        if samples is not None:
            frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
            frame.rate = RATE
            for packet in [*track.encode(frame), *track.encode()]:
                container.mux(packet)
    return buffer.getvalue()


def heard_video_bytes(num_frames: int, size: int, samples: npt.NDArray[np.int16]) -> bytes:
    """A video whose sound is exactly these samples."""
    return video_bytes(num_frames, size, samples, form="matroska")


def video_part(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url("video/mp4", data)}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def question(name: str, parts: list[dict[str, Any]], **media: list[Any]) -> Question:
    """One user turn of parts; the reference's parts are the same without data."""
    kinds = {"image_url": "image", "input_audio": "audio", "video_url": "video", "text": "text"}
    turn = [{**part, "type": kinds[part["type"]]} for part in parts]
    return Question(
        name, [{"role": "user", "content": parts}], [{"role": "user", "content": turn}], media
    )


def plain(name: str, *turns: tuple[str, str]) -> Question:
    messages = [{"role": role, "content": content} for role, content in turns]
    return Question(name, messages, messages)


PICTURE, WIDE, HOUSE = picture(64, 64), picture(96, 160, seed=1), picture(256, 256, seed=2)
SHORT, LONG = sound(8000), sound(36800)

QUESTIONS = [
    plain("text", ("user", "Hello, who are you?")),
    plain(
        "turns",
        ("system", "Be kind and brief."),
        ("user", "What is one?"),
        ("assistant", "A number."),
        ("user", "And two?"),
    ),
    plain("long", ("user", "Tell me more about the fox and the hound. " * 9)),
    question("image", [image_part(PICTURE), text("What is it?")], images=[PICTURE]),
    question(
        "two images",
        [image_part(PICTURE), text("and"), image_part(WIDE), text("differ?")],
        images=[PICTURE, WIDE],
    ),
    question("sound", [sound_part(LONG), text("What is said?")], audio=[LONG / 32768]),
    question(
        "sound and image",
        [sound_part(SHORT), image_part(WIDE), text("Both?")],
        audio=[SHORT / 32768],
        images=[WIDE],
    ),
]


WORDS = "Hello, who are you? Tell me a tale of two cities, please. "
# One sound: transformers pads several to one length, and then hears the shorter ones otherwise.
USER_TURNS = [
    question("a picture", [image_part(HOUSE), text(WORDS)], images=[HOUSE]),
    question("a sound", [text(WORDS), sound_part(LONG)], audio=[LONG / 32768]),
    question("another picture", [image_part(WIDE), text(WORDS)], images=[WIDE]),
    plain("words", ("user", WORDS)),
]


def conversation(answers: Sequence[str]) -> Question:
    """The user's turns so far, each but the last with the answer to it."""
    asked = USER_TURNS[: len(answers) + 1]
    media: dict[str, list[Any]] = {}
    messages, turns = list(asked[0].messages), list(asked[0].turns)
    for kind, values in asked[0].media.items():
        media[kind] = list(values)
    for answer, one in zip(answers, asked[1:], strict=True):
        said = {"role": "assistant", "content": answer}
        messages += [said, *one.messages]
        turns += [said, *one.turns]
        for kind, values in one.media.items():
            media[kind] = [*media.get(kind, []), *values]
    return Question(f"turn {len(asked)}", messages, turns, media)


def video_question(data: bytes) -> Question:
    """A question about a video, of which the reference gets all frames."""
    frames = decoded_frames(data)
    return question("video", [video_part(data), text("What happens?")], videos=[frames])


def sampled_question(
    name: str, data: bytes, part: dict[str, Any] | None = None, **sampling: Any
) -> Question:
    """One about a video of which transformers' own processor samples the frames."""
    from transformers import Qwen2VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    frames = decoded_frames(data)
    metadata = VideoMetadata(total_num_frames=len(frames), fps=VIDEO_FPS)
    asked = {"fps": 2.0, **sampling}
    indices = Qwen2VLVideoProcessor().sample_frames(metadata, **asked)
    seen = frames[indices.clamp(max=len(frames) - 1).numpy()]
    parts = [{**video_part(data), **(part or {})}, text("What happens?")]
    made = question(name, parts, videos=[seen])
    options = {"fps": sampling["fps"]} if "fps" in sampling else {}
    return replace(made, options=options)


def heard_question(
    name: str,
    num_frames: int,
    side: int,
    num_samples: int,
    fps: float | None = None,
    **options: Any,
) -> Question:
    """One about a video and its own sound, with these options of the reference's processor."""
    samples = sound(num_samples)
    data = heard_video_bytes(num_frames, side, samples)
    sampling: dict[str, Any] = {} if fps is None else {"fps": fps}
    asked = sampled_question(name, data, **sampling)
    media = {**asked.media, "audio": [samples / 32768]}
    options |= {**asked.options, "use_audio_in_video": True}
    return replace(asked, media=media, options=options)

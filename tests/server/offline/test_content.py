"""Python's objects become parts that the gateway knows, and lose nothing on the way."""

import base64
import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.media.taken_media import taken

from omnistage.server.common.errors import ApiError
from omnistage.server.offline.content import messages_of, wav_of
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.chat.audio_history import AudioHistory
from omnistage.server.tasks.chat.media_options import media_of
from omnistage.server.tasks.chat.messages import checked_messages
from omnistage.server.tasks.pieces import Usage
from omnistage.server.tasks.recordings import Audio, audio_of

PIXELS = np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8)
PICTURE = Image.fromarray(PIXELS)
TONE = (1000 * np.sin(np.arange(480))).astype(np.int16)


def data_of(part: Any) -> bytes:
    """The file of the one medium of a message with this part."""
    (message,) = messages_of([{"role": "user", "content": ["before", part]}])
    (checked,) = checked_messages([message], AudioHistory())
    assert checked["content"][0] == {"type": "text", "text": "before"}
    (medium,) = media_of({"messages": [checked]})
    data = base64.b64decode(medium.encoded)
    expected = {"image_url": [], "audio_url": ["sound"], "video_url": ["frames"]}
    assert [kind for _, kind in taken(medium, data)] == expected[medium.kind]
    return data


def pixels_of(file: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image)


def samples_of(file: bytes) -> npt.NDArray[Any]:
    """[num_channels, n], as FFmpeg decodes them."""
    with av.open(io.BytesIO(file)) as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
        num_channels = container.streams.audio[0].codec_context.layout.nb_channels
    joined = np.concatenate([frame.reshape(-1) for frame in frames])
    channels: npt.NDArray[Any] = joined.reshape(-1, num_channels).T
    return channels


@pytest.mark.parametrize(
    "part",
    [
        PICTURE,
        {"type": "image", "image": PICTURE},
        {"type": "image", "image": PIXELS},
        {"type": "image_pil", "image_pil": PICTURE},
        {"type": "image_url", "image_url": PICTURE},
    ],
    ids=["image", "part", "array", "as vLLM's", "in place of a URL"],
)
def test_a_picture_keeps_its_pixels(part: Any) -> None:
    assert np.array_equal(pixels_of(data_of(part)), PIXELS)


def test_a_file_is_read(tmp_path: Path) -> None:
    PICTURE.save(tmp_path / "a.png")
    file = (tmp_path / "a.png").read_bytes()
    parts = [
        tmp_path / "a.png",
        {"type": "image", "image": str(tmp_path / "a.png")},
        {"type": "image", "image": file},
    ]
    assert [data_of(part) for part in parts] == [file] * 3


@pytest.mark.parametrize(
    "samples",
    [TONE, np.stack([TONE, -TONE], axis=1), TONE.astype(np.float32) / 32768],
    ids=["int16", "two channels", "float32"],
)
def test_a_sound_keeps_its_samples(samples: npt.NDArray[Any]) -> None:
    data = data_of({"type": "audio", "audio": (samples, 16_000)})
    read = samples_of(data)
    assert read.dtype == samples.dtype
    assert np.array_equal(read, samples.reshape(len(samples), -1).T)


def test_a_sound_of_an_answer_is_one_to_ask_about(tmp_path: Path) -> None:
    audio = audio_of(TONE.tobytes(), SampleFormat(24_000))
    assert np.array_equal(samples_of(data_of(audio))[0], TONE)
    audio.save(tmp_path / "a.wav")
    assert np.array_equal(samples_of(data_of(tmp_path / "a.wav"))[0], TONE)
    assert repr(audio) == "Audio(0.02 s at 24000 Hz)"
    assert isinstance(audio, Audio)


def test_what_the_gateway_knows_stays_as_it_is() -> None:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "b"},
        {"role": "user", "content": content},
    ]
    assert messages_of(messages) == messages
    (message,) = messages_of([{"role": "user", "content": [{"type": "image", "image": "data:x"}]}])
    assert message["content"] == [{"type": "image_url", "image_url": {"url": "data:x"}}]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image", "image": 3}, "messages[0].content[0].image must be a Pillow image"),
        ({"type": "image", "image": Path("gone.png")}, "cannot be read: gone.png: No such file"),
        ({"type": "image", "image": np.zeros((2, 2, 3), np.float32)}, "is no picture of uint8"),
        ({"type": "audio", "audio": TONE}, "must be (samples, sample_rate_hz), bytes"),
        ({"type": "audio", "audio": (TONE.astype(np.int32), 8000)}, "samples of int32"),
        ({"type": "audio", "audio": (TONE.reshape(1, 1, -1), 8000)}, "must have samples [n] or"),
        ({"type": "audio", "audio": (TONE, 0)}, "must have a rate of 1 to 768000 Hz, not 0"),
        ({"type": "image", "image": PICTURE.convert("F")}, "cannot be written as PNG"),
        ({"type": "video", "video": PICTURE}, "must be a Video, (frames, frames_per_second)"),
    ],
)
def test_what_is_no_medium_is_refused(part: Any, said: str) -> None:
    with pytest.raises(ApiError) as raised:
        messages_of([{"role": "user", "content": [part]}])
    assert said in raised.value.message
    assert (raised.value.param or "").startswith("messages[0].content[0].")


def test_a_message_is_a_dict() -> None:
    with pytest.raises(ApiError, match=r"messages\[0\] must be a dict"):
        messages_of(["words"])  # type: ignore[list-item]


def test_a_wav_of_floats_says_so() -> None:
    assert wav_of(np.zeros(4, np.float32), 8000, "here")[20] == 3
    assert wav_of(np.zeros(4, np.int16), 8000, "here")[20] == 1


def test_usages_of_all_endpoints_are_one() -> None:
    chat = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"a": 1}}
    assert Usage.of(chat) == Usage(5, 2, {"a": 1})
    images = {"input_tokens": 5, "output_tokens": 2, "output_tokens_details": {"b": 2}}
    assert Usage.of(images) == Usage(5, 2, {}, {"b": 2})
    assert Usage.of(images).total_tokens == 7

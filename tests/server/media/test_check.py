"""Media are looked at before a stage gets them."""

import io
import socket
import time
from typing import Any

import av
import numpy as np
import pytest
from support.api.prompts import heard_video_bytes, sound, sound_part, video_bytes
from support.hostile.bad_parts import good_png, good_wav, png, url_part
from support.media.taken_media import only, taken_of

from omnistage.server.common.errors import ApiError
from omnistage.server.media import containers
from omnistage.server.media import sound as sound_module
from omnistage.server.media.containers import MAX_DURATION_S, opened
from omnistage.server.media.video import frames
from omnistage.stages.worker.requests.coming_media import Received


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be kind."}, {"role": "user", "content": list(parts)}]


def check_media(messages: list[dict[str, Any]]) -> int:
    return len(taken_of({"messages": messages}))


def test_good_media_pass() -> None:
    messages = user(
        url_part("image_url", "image/jpeg", good_png()),  # what it is counts, not its name
        sound_part(sound(1600)),
        url_part("audio_url", "audio/wav", good_wav()),
        url_part("video_url", "video/mp4", video_bytes(num_frames=2, size=32)),
    )
    assert check_media(messages) == 4


def test_text_is_no_medium() -> None:
    assert check_media(user({"type": "text", "text": "Hi"})) == 0


def refusal(*parts: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check_media(user(*parts))
    assert caught.value.status == 400
    return caught.value


def test_a_refusal_names_the_place_and_the_reason() -> None:
    good = url_part("image_url", "image/png", good_png())
    error = refusal(good, url_part("image_url", "image/png", b"hello"))
    assert error.param == "messages[1].content[1].image_url"
    assert "no image" in str(error)


def test_a_decompression_bomb_is_not_inflated() -> None:
    bomb = url_part("image_url", "image/png", png(50_000, 50_000))
    started = time.process_time()
    error = refusal(bomb)
    assert time.process_time() - started < 1
    assert error.param == "messages[1].content[0].image_url"


def test_a_picture_of_too_many_pixels_says_how_many_are_allowed() -> None:
    error = refusal(url_part("image_url", "image/png", png(10_000, 7_000)))
    assert "10000 x 7000" in str(error)
    assert "64000000" in str(error)


def test_a_sound_that_lasts_too_long() -> None:
    samples = b"\0" * (2 * 100 * (MAX_DURATION_S + 1))  # 16 bit at 100 Hz
    header = good_wav(0)[:24] + (100).to_bytes(4, "little") + (200).to_bytes(4, "little")
    header += good_wav(0)[32:40] + len(samples).to_bytes(4, "little")
    error = refusal(url_part("audio_url", "audio/wav", header + samples))
    assert "3600 s" in str(error)


@pytest.mark.parametrize("kind", ["video_url", "audio_url"])
def test_a_picture_is_neither_video_nor_sound(kind: str) -> None:
    text = str(refusal(url_part(kind, "video/mp4", good_png())))
    assert kind in text


def test_a_picture_that_another_program_would_read_is_refused() -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n"
    assert "no image" in str(refusal(url_part("image_url", "image/png", eps)))


def test_frames_of_too_many_pixels_are_not_decoded_to_learn_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit reaches the streams, in every release of PyAV."""
    data, sizes = video_bytes(2, 64, form="mpegts"), []
    for most in (64 * 64, 64 * 63):
        monkeypatch.setitem(containers.OPEN_OPTIONS, "max_pixels", str(most))
        with opened(data) as container:
            sizes.append(container.streams.video[0].codec_context.width)
    assert sizes == [64, 0]


def test_a_video_of_one_frame_is_refused() -> None:
    one = url_part("video_url", "video/mp4", video_bytes(num_frames=1, size=32))
    assert "has 1 frame; at least 2" in str(refusal(one))


def flac(seconds: int, rate: int = 1000) -> bytes:
    """Silence."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, seconds * rate), np.int16), "s16", "mono")
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode()):
            container.mux(packet)
    return buffer.getvalue()


def test_a_sound_that_says_it_is_short_is_measured() -> None:
    """A few kilobytes that decode to more than an hour."""
    data = bytearray(flac(MAX_DURATION_S + 10))
    data[22:26] = (1000).to_bytes(4, "big")  # the number of samples in its header
    assert len(data) < 1 << 20
    assert "longer than 3600 s" in str(refusal(url_part("audio_url", "audio/flac", bytes(data))))


def test_a_sound_of_too_many_samples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_module, "MAX_SAMPLES", 1999)
    assert "1999 samples" in str(refusal(url_part("audio_url", "audio/flac", flac(2))))
    monkeypatch.setattr(sound_module, "MAX_SAMPLES", 2000)
    assert check_media(user(url_part("audio_url", "audio/flac", flac(2)))) == 1


@pytest.mark.parametrize(("limit", "most"), [("MAX_FRAMES", 9), ("MAX_VIDEO_PIXELS", 9 * 32 * 32)])
def test_a_video_of_too_many_frames_is_refused(
    limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, limit, most)
    nine, ten = (
        url_part("video_url", "video/mp4", video_bytes(num_frames, size=32))
        for num_frames in (9, 10)
    )
    assert check_media(user(nine)) == 1
    assert "longer than" in str(refusal(ten))


def test_a_broken_packet_ends_no_sound() -> None:
    data = bytearray(flac(20))
    data[len(data) // 2] ^= 0xFF
    assert check_media(user(url_part("audio_url", "audio/flac", bytes(data)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio PORT RTP/AVP 0\n",
        "ffconcat version 1.0\nfile http://127.0.0.1:PORT/x.wav\n",
        "ffconcat version 1.0\nfile /etc/passwd\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:PORT/x.ts\n",
    ],
    ids=["sdp", "concat of a host", "concat of a file", "hls"],
)
@pytest.mark.parametrize("kind", ["audio_url", "video_url"])
def test_a_list_of_other_places_is_no_medium(kind: str, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.setblocking(False)
        data = text.replace("PORT", str(inside.getsockname()[1])).encode()
        assert "cannot be read" in str(refusal(url_part(kind, "audio/wav", data)))
        with pytest.raises(BlockingIOError):
            inside.accept()


def watched(data: bytes, **fields: Any) -> Received:
    """What a stage gets of a video that a request wants to see or hear so; raises ApiError."""
    part = url_part("video_url", "video/mp4", data)
    (received,) = taken_of({"messages": user(part), **fields})
    return received


HEARD = {"mm_processor_kwargs": {"use_audio_in_video": True}}


def test_a_video_that_is_to_be_heard_has_a_sound() -> None:
    received = watched(heard_video_bytes(4, 32, sound(1600)), **HEARD)
    assert np.array_equal(only(received, "sound"), (sound(1600) / 32768).astype(np.float32))
    assert only(received, "frames").shape == (4, 32, 32, 3)
    mute = video_bytes(4, 32)
    watched(mute)
    with pytest.raises(ApiError, match="has no audio in it") as caught:
        watched(mute, **HEARD)
    assert caught.value.param == "messages[1].content[0].video_url"


def test_the_sound_of_a_video_is_measured_if_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    loud = heard_video_bytes(4, 32, sound(16000))
    monkeypatch.setattr(sound_module, "MAX_SAMPLES", 8000)
    watched(loud)
    with pytest.raises(ApiError, match="8000 samples"):
        watched(loud, **HEARD)


def test_no_request_makes_a_stage_hold_more_frames_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    film = video_bytes(24, 32)  # six seconds
    monkeypatch.setattr(frames, "MAX_SEEN_PIXELS", 16 * 32 * 32)
    watched(film)  # two frames a second
    with pytest.raises(ApiError, match="would be seen by 24 frames of 32 x 32"):
        watched(film, media_io_kwargs={"video": {"fps": 30}})
    watched(film, media_io_kwargs={"video": {"fps": 30, "max_frames": 16}})
    with pytest.raises(ApiError, match="lower fps or max_frames"):
        watched(film, media_io_kwargs={"video": {"min_frames": 18}})

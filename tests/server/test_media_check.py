"""Media are looked at before a stage gets them."""

import time
from typing import Any

import pytest
from support.bad_input import good_png, good_wav, png, url_part
from support.prompts import sound, sound_part, video_bytes

from omnistage.server.errors import ApiError
from omnistage.server.media_check import MAX_DURATION_S, check_media, has_media


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be kind."}, {"role": "user", "content": list(parts)}]


def test_good_media_pass() -> None:
    messages = user(
        url_part("image_url", "image/jpeg", good_png()),  # what it is counts, not its name
        sound_part(sound(1600)),
        url_part("audio_url", "audio/wav", good_wav()),
        url_part("video_url", "video/mp4", video_bytes(num_frames=2, size=32)),
    )
    assert has_media(messages)
    check_media(messages)


def test_text_is_no_medium() -> None:
    assert not has_media(user({"type": "text", "text": "Hi"}))


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


def test_a_video_of_one_frame_is_refused() -> None:
    one = url_part("video_url", "video/mp4", video_bytes(num_frames=1, size=32))
    assert "has 1 frame; at least 2" in str(refusal(one))

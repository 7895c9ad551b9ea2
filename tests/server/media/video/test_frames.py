"""Videos as they leave the gateway: frames by their times, whatever their files are."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.media.recorded import (
    Frames,
    decoded_frames,
    encoded_video,
    joined,
    moving,
    turned,
    without_packet,
)
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata, load_video

from omnistage.server.common.errors import ApiError
from omnistage.server.media.video.frames import Film, film_of, rate_of, scan_of
from omnistage.server.media.video.watching import AS_IT_IS, FrameChooser, Watching
from omnistage.stages.messages.to_gateway import Sampler

LIVE = {"live": "1"}
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}

# Containers and codecs; of each the options of both, and its pixels.
FILES: dict[str, tuple[str, str, dict[str, str], dict[str, str], str]] = {
    "mp4 h264": ("mp4", "libx264", {}, {}, "yuv420p"),
    "mp4 h264 in fragments": ("mp4", "libx264", FRAGMENTS, {}, "yuv420p"),
    "mp4 h265 of ten bits": ("mp4", "libx265", {}, {"x265-params": "log-level=none"}, "yuv420p10"),
    "mp4 mpeg4": ("mp4", "mpeg4", {}, {}, "yuv420p"),
    "mp4 av1": ("mp4", "libsvtav1", {}, {}, "yuv420p"),
    "mov mjpeg": ("mov", "mjpeg", {}, {}, "yuvj420p"),
    "webm vp8": ("webm", "libvpx", {}, {}, "yuv420p"),
    "webm vp8 of a recorder": ("webm", "libvpx", LIVE, {}, "yuv420p"),
    "webm vp8 with hidden frames": (
        "webm",
        "libvpx",
        {},
        {"auto-alt-ref": "1", "lag-in-frames": "8"},
        "yuv420p",
    ),
    "webm vp9": ("webm", "libvpx-vp9", {}, {}, "yuv420p"),
    "webm vp9 of a recorder": ("webm", "libvpx-vp9", LIVE, {}, "yuv420p"),
    "webm vp9 in full colour": ("webm", "libvpx-vp9", {}, {}, "yuv444p"),
    "webm av1": ("webm", "libsvtav1", {}, {}, "yuv420p"),
    "webm av1 of a recorder": ("webm", "libsvtav1", LIVE, {}, "yuv420p"),
    "mkv h264": ("matroska", "libx264", {}, {}, "yuv420p"),
    "mkv h264 of a recorder": ("matroska", "libx264", LIVE, {}, "yuv420p"),
    "mpegts mpeg2": ("mpegts", "mpeg2video", {}, {}, "yuv420p"),
    "mpegts h264": ("mpegts", "libx264", {}, {}, "yuv420p"),
    "mpeg": ("mpeg", "mpeg2video", {}, {}, "yuv420p"),
    "avi mpeg4": ("avi", "mpeg4", {}, {}, "yuv420p"),
    "avi mpeg4 with frames between": ("avi", "mpeg4", {}, {"bf": "2"}, "yuv420p"),
    "avi mjpeg": ("avi", "mjpeg", {}, {}, "yuvj420p"),
    "wmv": ("asf", "wmv2", {}, {}, "yuv420p"),
    "flv": ("flv", "flv", {}, {}, "yuv420p"),
    "gif": ("gif", "gif", {}, {}, "rgb8"),
}
ONLY_25 = ("mpegts", "mpeg")  # MPEG-2 has no others below


def test_no_file_makes_the_process_a_real_time_one() -> None:
    """SVT-AV1 asks for that in the thread that calls it; what we start would have it, too."""
    before = os.sched_getscheduler(0)
    decoded_frames(encoded_video(moving(4), "mp4", "libsvtav1"))
    assert os.sched_getscheduler(0) == before


def made(name: str, frames: Frames, times: Sequence[float] | int) -> bytes:
    form, codec, options, of_codec, pixels = FILES[name]
    return encoded_video(frames, form, codec, times, options, of_codec, pixels)


def seen(
    data: bytes, watching: Watching = AS_IT_IS, sampler: Sampler = "qwen2_vl"
) -> tuple[Film, Frames]:
    sampling = FrameChooser(sampler, {})
    film = film_of(data, "part", lambda total, rate: sampling.indices(total, rate, watching))
    return film, np.stack(list(film.frames))


@pytest.mark.parametrize("num_frames", [8, 24])
@pytest.mark.parametrize("name", FILES)
def test_the_frames_are_those_of_their_times(name: str, num_frames: int) -> None:
    rate = 25 if name.startswith(ONLY_25) else 4
    data = made(name, moving(num_frames), rate)
    whole = decoded_frames(data)
    assert len(whole) == num_frames
    film, frames = seen(data)
    assert film.scan.rate == pytest.approx(rate, rel=1e-6)
    processor = Qwen2VLVideoProcessor()
    metadata = {"total_num_frames": num_frames, "fps": float(rate)}
    expected = processor.sample_frames(VideoMetadata(**metadata), fps=2.0)
    assert film.indices.tolist() == expected.tolist()
    assert np.array_equal(frames, whole[expected.numpy()])


# When frames are shown, in seconds, and how many of them are seen a second.
UNEVEN = {
    "a pause": ([0, 0.1, 0.2, 0.3, 3.0, 3.1, 3.2, 3.3], 2.0),
    "faster and faster": ([0, 1.0, 1.8, 2.4, 2.8, 3.0, 3.1, 3.15], 2.0),
    "of a screen": ([0, 0.04, 5.0, 5.04, 9.0, 9.5, 9.54, 30.0], 1.0),
    "late": ([7.0, 7.1, 7.2, 9.0, 9.1, 9.2, 11.0, 11.1], 2.0),
}


@pytest.mark.parametrize("form", ["webm of a recorder", "webm", "mkv"])
@pytest.mark.parametrize("name", UNEVEN)
def test_of_uneven_frames_those_are_seen_that_are_shown_at_even_times(name: str, form: str) -> None:
    times, fps = UNEVEN[name]
    container, codec = ("matroska", "libx264") if form == "mkv" else ("webm", "libvpx")
    options = LIVE if "recorder" in form else {}
    data = encoded_video(moving(len(times)), container, codec, times, options)
    film, frames = seen(data, Watching(fps=fps))
    late = np.array(times) - times[0]
    gap = film.scan.seconds / len(times)
    assert film.scan.num_frames == len(times)
    assert film.scan.seconds == pytest.approx(late[-1] + late[-1] / (len(times) - 1))
    at = film.indices / film.scan.rate
    assert np.allclose(np.diff(at), at[1] - at[0], atol=gap)  # even times, in whole gaps
    shown = np.searchsorted(late, at + 1e-3, side="right") - 1
    assert np.array_equal(frames, decoded_frames(data)[shown])


@pytest.mark.parametrize("sampler", ["qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize("rate", [24, 25, 30, 50])
def test_times_that_a_container_rounds_change_no_choice(sampler: Sampler, rate: int) -> None:
    """WebM has milliseconds: frames of 30 a second are 33 or 34 apart."""
    clip = moving(91, 32, 32)
    exact = encoded_video(clip, "mp4", "mpeg4", rate)
    rounded = encoded_video(clip, "matroska", "mpeg4", [i / rate for i in range(91)], LIVE)
    for fps in (1.0, 2.0, 3.7, 30.0):
        one, other = (seen(data, Watching(fps=fps), sampler) for data in (exact, rounded))
        assert one[0].indices.tolist() == other[0].indices.tolist()
        assert np.array_equal(one[1], other[1])


@pytest.mark.parametrize("processor", [Qwen2VLVideoProcessor, Qwen3VLVideoProcessor])
@pytest.mark.parametrize("asked", [{}, {"fps": 1.0}, {"fps": 4.0}, {"fps": 7.5}])
@pytest.mark.parametrize("size", [(64, 64), (90, 122), (240, 320)])
def test_a_processor_makes_the_same_of_them_as_of_the_file(
    processor: type[Any], asked: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    """Pixels, grid and times are those that transformers makes of a file that it reads itself."""
    data = encoded_video(moving(50, *size), "mp4", "libx264", 8)
    path = tmp_path / "video.mp4"
    path.write_bytes(data)
    sampler: Sampler = "qwen2_vl" if processor is Qwen2VLVideoProcessor else "qwen3_vl"
    film, frames = seen(data, Watching(**asked), sampler)
    made_of = processor()
    file, read = load_video(
        str(path),
        backend="pyav",
        sample_indices_fn=lambda metadata, **_: np.minimum(
            np.asarray(made_of.sample_frames(metadata, fps=asked.get("fps", 2.0))), 49
        ),
    )
    assert film.indices.tolist() == list(read.frames_indices)
    given = {"do_sample_frames": False, "return_tensors": "pt", "return_metadata": True}
    wanted = made_of(videos=[file], video_metadata=[read], **given)
    own = {name: film.metadata[name] for name in ("total_num_frames", "fps", "frames_indices")}
    ours = made_of(videos=[frames], video_metadata=[VideoMetadata(**own)], **given)
    assert torch.equal(ours["pixel_values_videos"], wanted["pixel_values_videos"])
    assert torch.equal(ours["video_grid_thw"], wanted["video_grid_thw"])
    assert ours["video_metadata"][0].timestamps == wanted["video_metadata"][0].timestamps


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_video_that_is_to_be_turned_is_seen_upright(degrees: int) -> None:
    data = encoded_video(moving(8, 48, 64), "mp4", "libx264")
    upright = np.rot90(decoded_frames(data)[[0, 2, 4, 6]], -degrees // 90, axes=(1, 2))
    _, frames = seen(turned(data, degrees))
    assert np.array_equal(frames, upright)


def test_a_video_whose_frames_change_their_size_is_seen_in_the_first() -> None:
    """As recorders of calls write it: the size follows the network."""
    small, large = (encoded_video(moving(6, side, side), "webm", "libvpx") for side in (48, 96))
    _, frames = seen(joined(small, large, "webm"), Watching(fps=30.0, min_frames=12))
    assert frames.shape == (12, 48, 48, 3)
    assert np.array_equal(frames[:6], decoded_frames(small))
    shrunk = decoded_frames(large).reshape(6, 48, 2, 48, 2, 3).mean(axis=(2, 4))
    assert np.abs(frames[6:] - shrunk).mean() < 4


@pytest.mark.parametrize("number", [0, 3, 11])
@pytest.mark.parametrize(("form", "codec"), [("matroska", "libx264"), ("mp4", "mpeg4")])
def test_a_frame_that_is_not_there_is_the_one_before(form: str, codec: str, number: int) -> None:
    data = encoded_video(moving(12), form, codec, 4, {}, {"bf": "0", "g": "6"})
    cut = without_packet(data, form, number)
    left = decoded_frames(cut)
    film, frames = seen(cut, Watching(fps=30.0, min_frames=12), "qwen3_vl")
    assert len(frames) == len(film.indices)
    assert np.array_equal(frames[-1], left[-1])
    assert all(any(np.array_equal(frame, one) for one in left) for frame in frames)


def test_no_more_is_decoded_than_up_to_the_last_frame_that_is_seen() -> None:
    film, _ = seen(encoded_video(moving(24), "mp4", "mpeg4", 4), Watching(fps=2, max_frames=2))
    assert film.indices.tolist() == [0, 12]


@pytest.mark.parametrize("name", ["mp4 h264", "webm vp8 of a recorder", "avi mpeg4", "gif"])
def test_a_video_of_one_frame_is_refused(name: str) -> None:
    with pytest.raises(ApiError, match="part has 1 frame; at least 2"):
        seen(made(name, moving(1), 4))


def test_a_video_none_of_whose_frames_can_be_decoded_is_refused() -> None:
    data = bytearray(encoded_video(moving(12), "mp4", "libx264"))
    start = data.index(b"mdat") + 4
    end = data.index(b"moov")
    data[start : end - 4] = bytes(end - 4 - start)
    with pytest.raises(ApiError, match="part has 0 frames; at least 2"):
        seen(bytes(data))


def test_a_video_longer_than_an_hour_is_refused_by_its_times() -> None:
    hour, longer = (
        encoded_video(moving(3), "webm", "libvpx", [0.0, 1.0, last], LIVE) for last in (3600, 3601)
    )
    assert scan_of(hour, "part").num_frames == 3
    with pytest.raises(ApiError, match="part is longer than 3600 s"):
        scan_of(longer, "part")


@pytest.mark.parametrize("rate", [1, 10, 15, 24, 25, 30, 50, 60, 24_000 / 1001, 30_000 / 1001])
@pytest.mark.parametrize("num_frames", [2, 3, 30, 299, 3000])
@pytest.mark.parametrize("stated", [0.0, 1000.0])
def test_a_usual_rate_is_known_by_its_rounded_times(
    rate: float, num_frames: int, stated: float
) -> None:
    span = round((num_frames - 1) / rate, 3)
    expected = round((num_frames - 1) / span) if num_frames < 30 else rate  # few say little
    assert rate_of(num_frames, span, 1e-3, stated) == pytest.approx(expected, rel=1e-2)
    if num_frames >= 300:
        assert rate_of(num_frames, span, 1e-3, stated) == rate


def test_a_rate_is_stated_unless_times_disagree() -> None:
    assert rate_of(100, 99 / 29.9, 1e-3, 29.87) == 29.87
    assert rate_of(8, 3.3, 1e-3, 30.0) == pytest.approx(7 / 3.3)

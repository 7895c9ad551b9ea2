"""Files of sounds and videos as recorders write them: any container, codec, length and rate."""

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

UNKNOWN = 0xFFFFFFFF  # a length in a header that says nothing

Wave = npt.NDArray[np.float64]  # [channels, n] of -1 to 1
Frames = npt.NDArray[np.uint8]  # [n, height, width, 3]


def tones(seconds: float, rate_hz: int, num_channels: int = 1) -> Wave:
    """A tone for each channel, which no other has."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    return np.stack([0.3 * np.sin(2 * np.pi * 220 * (i + 1) * times) for i in range(num_channels)])


def plain_wav(
    sound: Wave,
    rate_hz: int,
    bits: int = 16,
    is_float: bool = False,
    riff_size: int | None = None,
    data_size: int | None = None,
) -> bytes:
    """A WAV; the sizes in its header are those given, whatever is true."""
    data = samples_in(sound, bits, is_float)
    channels = len(sound)
    block = channels * bits // 8
    form = struct.pack(
        "<HHIIHH", 3 if is_float else 1, channels, rate_hz, rate_hz * block, block, bits
    )
    size = len(data) if data_size is None else data_size
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", size)
    whole = len(body) + len(data) if riff_size is None else riff_size
    return b"RIFF" + struct.pack("<I", whole) + body + data


def samples_in(sound: Wave, bits: int, is_float: bool = False) -> bytes:
    """Interleaved samples as a WAV has them."""
    mixed = sound.T.reshape(-1)
    if is_float:
        return mixed.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return as_read(mixed, 8, to_int=True).astype(np.uint8).tobytes()
    whole = as_read(mixed, bits, to_int=True).astype("<i4")
    if bits == 24:
        return whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


def as_read(sound: Wave, bits: int, is_float: bool = False, to_int: bool = False) -> Wave:
    """What is left of samples once they have been written with so many bits."""
    if is_float:
        return sound.astype(np.float32 if bits == 32 else np.float64).astype(np.float64)
    most = 1 << (bits - 1)
    whole = np.clip(np.round(sound * most), -most, most - 1)
    if to_int:
        return whole + (128 if bits == 8 else 0)
    return whole / most


def encoded_sound(
    sound: Wave,
    rate_hz: int,
    form: str,
    codec: str,
    sample_format: str,
    options: Mapping[str, str] | None = None,
) -> bytes:
    """A file of a container, with a codec that takes samples so."""
    buffer = io.BytesIO()
    layout = "stereo" if len(sound) == 2 else "mono"
    with av.open(buffer, "w", format=form, options=dict(options or {})) as container:
        experimental = {"strict": "-2"}
        stream = container.add_stream(codec, rate=rate_hz, layout=layout, options=experimental)
        stream.bit_rate = 64_000
        resampler = av.AudioResampler(format=sample_format, rate=rate_hz)
        fifo = av.AudioFifo()
        frame = av.AudioFrame.from_ndarray(sound.astype(np.float32), "fltp", layout)
        frame.sample_rate = rate_hz
        for one in resampler.resample(frame):
            one.pts = None
            fifo.write(one)
        stream.codec_context.open()
        size = stream.codec_context.frame_size or 4096
        num_sent = 0
        while (one := fifo.read(size, partial=True)) is not None:
            one.pts, one.time_base = num_sent, Fraction(1, rate_hz)
            num_sent += one.samples
            container.mux(stream.encode(one))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def without_length(flac: bytes) -> bytes:
    """The same FLAC without its number of samples, as a stream of it begins."""
    data = bytearray(flac)
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


def moving(num_frames: int, height: int = 64, width: int = 64) -> Frames:
    """Frames that differ: a square that moves on a slope of gray."""
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    frames[:] = np.linspace(30, 200, width).astype(np.uint8)[None, None, :, None]
    for i, frame in enumerate(frames):
        left = 3 * i % (width - 16)
        frame[8:24, left : left + 16] = (220, 40 * i % 256, 60)
    return frames


def encoded_video(
    frames: Frames,
    form: str,
    codec: str,
    times: Sequence[float] | int = 4,
    options: Mapping[str, str] | None = None,
    codec_options: Mapping[str, str] | None = None,
    pixel_format: str = "yuv420p",
) -> bytes:
    """A file of a container; `times`: when each frame is shown in seconds, or frames a second.

    In a thread that ends: SVT-AV1 gives the one that calls it a real-time priority, if it may, and
    every process that a test starts would have it, too.
    """
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(
            _encoded_video, frames, form, codec, times, options, codec_options, pixel_format
        )
        return made.result()


def _encoded_video(
    frames: Frames,
    form: str,
    codec: str,
    times: Sequence[float] | int,
    options: Mapping[str, str] | None,
    codec_options: Mapping[str, str] | None,
    pixel_format: str,
) -> bytes:
    buffer = io.BytesIO()
    rate = times if isinstance(times, int) else 30
    tick = Fraction(1, 1000)
    at: Iterable[float] = (
        (i / times for i in range(len(frames))) if isinstance(times, int) else times
    )
    with av.open(buffer, "w", format=form, options=dict(options or {})) as container:
        stream = container.add_stream(codec, rate=rate, options=dict(codec_options or {}))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixel_format
        if not isinstance(times, int):
            stream.codec_context.time_base = tick
        for frame, time in zip(frames, at, strict=True):
            one = av.VideoFrame.from_ndarray(frame, "rgb24")
            if not isinstance(times, int):
                one.pts, one.time_base = round(time / tick), tick
            container.mux(stream.encode(one))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def without_packet(video: bytes, form: str, number: int) -> bytes:
    """The same without one of its packets, by their order."""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(video)) as read, av.open(buffer, "w", format=form) as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for i, packet in enumerate(read.demux(video=0)):
            if packet.size and i != number:
                packet.stream = stream
                written.mux(packet)
    return buffer.getvalue()


def joined(first: bytes, second: bytes, form: str) -> bytes:
    """A video that goes on as another one, of the same codec, where it ends."""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(first)) as read, av.open(buffer, "w", format=form) as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        start = 0
        for one in (first, second):
            with av.open(io.BytesIO(one)) as container:
                end = 0
                for packet in container.demux(video=0):
                    if packet.size:
                        packet.stream = stream
                        packet.pts, packet.dts = packet.pts + start, packet.dts + start
                        end = packet.pts + packet.duration
                        written.mux(packet)
            start = end
    return buffer.getvalue()


def turned(mp4: bytes, degrees: int) -> bytes:
    """The same with a header that asks players to turn it clockwise, as phones write it."""
    cos, sin = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    matrix = [cos << 16, sin << 16, 0, -sin << 16, cos << 16, 0, 0, 0, 1 << 30]
    at = mp4.index(b"tkhd") + 4 + 40  # of version 0: what comes before the matrix
    return mp4[:at] + struct.pack(">9i", *matrix) + mp4[at + 36 :]


def decoded_frames(data: bytes) -> Frames:
    """Every frame of a video as FFmpeg decodes it, RGB."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


def decoded_sound(data: bytes) -> Wave:
    """Every sample of a sound as FFmpeg decodes it, [channels, n]."""
    resampler = av.AudioResampler(format="dblp")
    with av.open(io.BytesIO(data)) as container:
        frames = [one for frame in container.decode(audio=0) for one in resampler.resample(frame)]
    return np.concatenate([one.to_ndarray() for one in frames], axis=1)

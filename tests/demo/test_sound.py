"""Sound that is read while it grows."""

import asyncio
import io
import wave

from omnistage.demo.sound import RATE_HZ, LatestSounds, duration_s, wav


def test_a_wav_file_has_the_samples_and_their_rate() -> None:
    with wave.open(io.BytesIO(wav(b"\1\0\2\0"))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE_HZ, 1, 2)
        assert file.readframes(9) == b"\1\0\2\0"


def test_the_length_is_that_of_the_samples() -> None:
    assert duration_s(2 * RATE_HZ) == 1.0


async def test_a_reader_gets_each_piece_when_it_comes_and_the_end() -> None:
    sound = LatestSounds().open()
    reading = sound.read()
    sound.add(b"ab")
    assert await anext(reading) == b"ab"
    waiting = asyncio.ensure_future(anext(reading, None))
    await asyncio.sleep(0)
    assert not waiting.done()
    sound.add(b"cd")
    assert await waiting == b"cd"
    sound.end()
    assert await anext(reading, None) is None


async def test_a_late_reader_gets_all_of_it() -> None:
    sound = LatestSounds().open()
    sound.add(b"ab")
    sound.add(b"cd")
    sound.end()
    assert [piece async for piece in sound.read()] == [b"abcd"]


async def test_two_readers_get_the_same() -> None:
    sound = LatestSounds().open()

    async def read() -> bytes:
        return b"".join([piece async for piece in sound.read()])

    readers = [asyncio.create_task(read()) for _ in range(2)]
    for piece in (b"ab", b"cd", b"ef"):
        await asyncio.sleep(0)
        sound.add(piece)
    sound.end()
    assert await asyncio.gather(*readers) == [b"abcdef"] * 2


async def test_half_a_sample_waits_for_its_other_half() -> None:
    sound = LatestSounds().open()
    reading = sound.read()
    sound.add(b"abc")
    assert await anext(reading) == b"ab"
    sound.add(b"d")
    assert await anext(reading) == b"cd"


async def test_the_oldest_sound_goes_and_ends() -> None:
    sounds = LatestSounds(limit=1)
    old = sounds.open()
    new = sounds.open()
    assert sounds.find(old.id) is None
    assert sounds.find(new.id) is new
    assert [piece async for piece in old.read()] == []

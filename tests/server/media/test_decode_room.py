"""Room for decoding: in order, given back, and waited for no longer than the deadline."""

import asyncio
import io
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from PIL import Image
from support.hostile.bad_parts import png
from support.media.hosts import Client
from support.waiting import until

from omnistage.server.common.errors import ApiError
from omnistage.server.common.memory import GivingBack
from omnistage.server.http.request import HttpCaller
from omnistage.server.media.check import check_image
from omnistage.server.media.decode_room import DecodeRoom
from omnistage.server.media.fetch import MediaFetcher
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.image_load import load_images
from omnistage.server.media.images import File, image_bytes, read_images
from omnistage.server.media.load import MediaLoader

NUM_BYTES = 100


@pytest.fixture
def room() -> DecodeRoom:
    return DecodeRoom(NUM_BYTES, GivingBack())


class Work:
    """What takes room until it is told to end."""

    def __init__(self, room: DecodeRoom, num_bytes: int) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.task = asyncio.create_task(room.run(num_bytes, self._do))

    def _do(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(600)


async def begun(work: Work) -> None:
    await until(work.has_begun.is_set)


async def test_who_finds_no_room_waits_and_is_let_in_in_order(room: DecodeRoom) -> None:
    first = Work(room, 60)
    await begun(first)
    second, third = Work(room, 50), Work(room, 40)  # the third would fit now
    await asyncio.sleep(0.05)
    assert not second.has_begun.is_set()
    assert not third.has_begun.is_set()
    first.may_end.set()
    await begun(second)
    await begun(third)
    for work in (second, third):
        work.may_end.set()
        await work.task
    await until(lambda: room.num_taken == 0)


async def test_who_needs_more_than_all_has_all(room: DecodeRoom) -> None:
    work = Work(room, 10 * NUM_BYTES)
    await begun(work)
    assert room.num_taken == NUM_BYTES
    work.may_end.set()
    await work.task
    await until(lambda: room.num_taken == 0)


async def test_who_leaves_the_queue_holds_nobody_up(room: DecodeRoom) -> None:
    first = Work(room, 60)
    await begun(first)
    large, small = Work(room, 90), Work(room, 40)
    await asyncio.sleep(0)
    large.task.cancel()
    await begun(small)
    for work in (first, small):
        work.may_end.set()
    await asyncio.gather(first.task, small.task)
    await until(lambda: room.num_taken == 0)


async def test_work_that_nobody_waits_for_keeps_its_room_until_it_ends(room: DecodeRoom) -> None:
    work = Work(room, 60)
    await begun(work)
    work.task.cancel()
    await asyncio.sleep(0.05)
    assert room.num_taken == 60
    work.may_end.set()
    await until(lambda: room.num_taken == 0)


def fails() -> int:
    raise ValueError("no")


@pytest.mark.parametrize(("work", "num_kept"), [(lambda: 20, 20), (lambda: 90, 60), (fails, 0)])
async def test_a_result_keeps_its_part_until_the_request_ends(
    work: Callable[[], int], num_kept: int, room: DecodeRoom
) -> None:
    with ExitStack() as request:
        running = room.run(60, work, request, lambda result: result)
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: room.num_taken == num_kept)
    await until(lambda: room.num_taken == 0)


async def test_a_request_waits_for_room_no_longer_than_its_deadline(room: DecodeRoom) -> None:
    other = Work(room, NUM_BYTES)
    await begun(other)
    loader = MediaLoader(MediaFetcher(()), MediaFolder(None), room)
    caller = HttpCaller(Client().request(0.1))
    loading = load_images([File("image", png(8, 8))], None, loader, caller.until)
    with pytest.raises(ApiError) as caught:
        await caller.wait(loading)
    assert (caught.value.status, caught.value.code) == (504, "timeout")
    other.may_end.set()
    await other.task


class Steps:
    """A work of several steps, none of which begins before it is told to."""

    def __init__(self, room: DecodeRoom, num_bytes: int) -> None:
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.num_done = 0
        self.is_closed = False
        self.task = asyncio.create_task(self._run(room, num_bytes))

    async def _run(self, room: DecodeRoom, num_bytes: int) -> None:
        async with room.held(num_bytes, self._close) as do:
            for _ in range(3):
                await do(self._step)

    def _step(self) -> None:
        self.has_begun.set()
        self.may_go_on.wait()
        assert not self.is_closed
        self.num_done += 1

    def _close(self) -> None:
        self.is_closed = True


async def test_a_work_of_several_steps_holds_its_room_and_waits_for_no_more(
    room: DecodeRoom,
) -> None:
    steps = Steps(room, 60)
    await until(lambda: room.num_taken == 60)
    waiting = Work(room, 50)  # stands before any step that would have to wait for room
    steps.may_go_on.set()
    await steps.task
    assert (steps.num_done, steps.is_closed) == (3, True)
    await begun(waiting)
    waiting.may_end.set()
    await waiting.task
    await until(lambda: room.num_taken == 0)


async def test_steps_that_nobody_waits_for_are_closed_once_none_runs(room: DecodeRoom) -> None:
    steps = Steps(room, 60)
    await until(steps.has_begun.is_set)
    steps.task.cancel()
    await asyncio.sleep(0.05)
    assert (room.num_taken, steps.is_closed) == (60, False)
    steps.may_go_on.set()
    await until(lambda: room.num_taken == 0)
    assert (steps.num_done, steps.is_closed) == (1, True)


async def test_steps_whose_work_fails_give_their_room_back(room: DecodeRoom) -> None:
    closed: list[bool] = []
    with pytest.raises(ValueError, match="no"):
        async with room.held(60, lambda: closed.append(True)) as do:
            await do(fails)
    await until(lambda: room.num_taken == 0)
    assert closed == [True]


def icon(width: int, height: int) -> bytes:
    """One that says it is 16 x 16, with a picture in it that is not."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "ICO", sizes=[(16, 16)])
    return buffer.getvalue()[:22] + png(width, height)


def test_an_icon_is_no_larger_than_icons_are() -> None:
    check_image(icon(16, 16), "a")
    with pytest.raises(ApiError, match="an icon with a picture of more than 1024 a side"):
        check_image(icon(5000, 4000), "a")
    with pytest.raises(ApiError, match="cannot be read"):
        read_images([File("image", icon(5000, 4000))])
    with pytest.raises(ApiError, match="cannot be read"):
        check_image(icon(16, 16)[:30], "a")


def test_the_room_of_pictures_is_known_before_they_are_decoded() -> None:
    small, large = (image_bytes([File("image", png(side, side))])[0] for side in (100, 4000))
    assert small < 1 << 20
    assert large > 16_000_000 * 16

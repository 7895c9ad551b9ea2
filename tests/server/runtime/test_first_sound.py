"""How many spoken answers are let in, so that first sounds come within a limit."""

import asyncio
import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pytest
from support.virtual_time import run_virtual

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.first_sound import TRY_S, SpokenPlace, SpokenPlaces

LIMIT_S = 0.4
ANSWER_S = 1.5
EMPTY_S = 0.05  # to the first sound of an answer that is alone
EACH_S = 0.0025  # that every other answer adds


@dataclass
class Served:
    """Answers of a server with so many seats, in virtual time; `slow` stretches what it does."""

    places: SpokenPlaces | None
    num_seats: int = 64
    slow: Callable[[float], float] = lambda now: 1.0
    waits: list[tuple[float, float]] = field(default_factory=list)  # of each: when, and how long
    cuts: list[float] = field(default_factory=list)
    refused_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seats = asyncio.Semaphore(self.num_seats)
        self._num_seated = 0
        self._random = random.Random(7)

    async def answer(self) -> bool:
        """Ask for one; whether it was let in."""
        now = asyncio.get_running_loop().time
        place = None
        if self.places is not None:
            try:
                place = self.places.take(now())
            except ApiError:
                self.refused_at.append(now())
                return False
            place.send(now(), is_whole=True)
        began_at = now()
        async with self._seats:
            self._num_seated += 1
            stretch = self.slow(now()) * self._random.uniform(0.8, 1.2)
            await asyncio.sleep((EMPTY_S + EACH_S * self._num_seated) * stretch)
            if self.places is not None and place is not None:
                allowed = self.places.num_allowed
                self.places.hear(place, now())
                if self.places.num_allowed < allowed:
                    self.cuts.append(now())
            self.waits.append((now(), now() - began_at))
            await asyncio.sleep(ANSWER_S * stretch)
            self._num_seated -= 1
        if self.places is not None and place is not None:
            self.places.give_back(place, now())
        return True

    async def stream(self, until_s: float) -> None:
        """One client that asks again at once, and a second after a refusal."""
        await asyncio.sleep(self._random.uniform(0, 1))
        while asyncio.get_running_loop().time() < until_s:
            if not await self.answer():
                await asyncio.sleep(1 + self._random.uniform(0, 0.2))

    async def load(self, num_streams: int, until_s: float) -> None:
        """So many of these clients until then."""
        await asyncio.gather(*(self.stream(until_s) for _ in range(num_streams)))

    def share_late(self, after_s: float = 0.0) -> float:
        waits = [wait for at, wait in self.waits if at >= after_s]
        return sum(wait > LIMIT_S for wait in waits) / len(waits)


def under_load(
    num_streams: int, seconds: float, *, limit_s: float | None = LIMIT_S, num_seats: int = 64
) -> Served:
    async def run() -> Served:
        served = Served(None if limit_s is None else SpokenPlaces(limit_s), num_seats)
        await served.load(num_streams, seconds)
        return served

    return run_virtual(run())


@pytest.mark.parametrize(
    ("num_streams", "num_seats", "learned_s", "seconds"),
    [(128, 64, 30, 120), (64, 16, 30, 240), (12, 2, 300, 1800), (6, 1, 300, 3600)],
)
def test_of_those_that_are_let_in_one_in_a_hundred_is_late_at_most(
    num_streams: int, num_seats: int, learned_s: float, seconds: float
) -> None:
    """Once it has learned: an empty server has measured nothing."""
    without = under_load(num_streams, seconds, limit_s=None, num_seats=num_seats)
    with_limit = under_load(num_streams, seconds, num_seats=num_seats)
    assert without.share_late() > 0.5
    assert with_limit.share_late(after_s=learned_s) <= 0.01
    assert with_limit.refused_at
    assert len(with_limit.waits) > 0.9 * len(without.waits)


def test_a_server_that_keeps_the_limit_refuses_only_while_it_learns() -> None:
    served = under_load(32, 60)
    assert served.share_late() == 0
    assert not served.cuts
    assert max(served.refused_at) < 10


def test_what_slowed_a_server_down_for_a_while_is_forgotten() -> None:
    """Also if it has known its number for long, and tries a higher one seldom."""

    async def run() -> Served:
        slow = lambda now: 8.0 if 600 < now < 630 else 1.0  # noqa: E731
        served = Served(SpokenPlaces(LIMIT_S), 32, slow)
        await served.load(64, 800)
        return served

    served = run_virtual(run())
    spans = ((500, 590), (610, 628), (760, 800))
    before, slowed, after = (
        sum(start < at <= end for at, _ in served.waits) / (end - start) for start, end in spans
    )
    assert slowed < before / 4
    assert after > 0.95 * before
    assert served.share_late(after_s=660) <= 0.01


def test_a_number_that_was_too_much_is_tried_again_ever_less_often() -> None:
    served = under_load(24, 1200, num_seats=16)
    times = [at for at in served.cuts if at > 30]
    assert len(times) <= 2 * (1 + math.log2(1200 / TRY_S))  # one try may be cut twice
    assert served.places is not None
    assert served.places.num_allowed >= 16


# One after another


def placed(places: SpokenPlaces, num: int, now: float = 0.0) -> list[SpokenPlace]:
    """So many that were sent."""
    taken = [places.take(now) for _ in range(num)]
    for place in taken:
        place.send(now, is_whole=True)
    return taken


def end(places: SpokenPlaces, taken: Collection[SpokenPlace], now: float) -> None:
    for place in taken:
        places.give_back(place, now)


def learned(num: int) -> SpokenPlaces:
    """Places of a server that has answered up to so many at once in time."""
    places = SpokenPlaces(LIMIT_S)
    while places.num_allowed < num:
        taken = placed(places, places.num_allowed)
        for place in taken:
            places.hear(place, 0.1)
        end(places, taken, 0.1)
    return places


def test_an_empty_server_takes_a_request_whatever_it_has_seen() -> None:
    places = SpokenPlaces(LIMIT_S)
    for now in range(0, 1000, 10):
        for place in (taken := placed(places, places.num_allowed, now)):
            places.hear(place, now + 9)
        with pytest.raises(ApiError):
            places.take(now + 9)
        end(places, taken, now + 9)
    assert places.num_allowed == 1


def test_a_single_late_one_changes_nothing() -> None:
    places = learned(32)
    allowed = places.num_allowed
    for _ in range(10):
        late, *others = placed(places, 21)
        places.hear(late, 5)
        for other in others:
            places.hear(other, 0.1)
        end(places, (late, *others), 5)
    assert places.num_allowed == allowed


def test_two_late_ones_let_fewer_in_once() -> None:
    """Those beside them were let in by the same number, which is known to be wrong already."""
    places = learned(32)
    allowed = places.num_allowed
    taken = placed(places, allowed)
    for place in taken:
        places.hear(place, LIMIT_S)
    assert places.num_allowed == int(allowed * 0.8)
    end(places, taken, 1)


def test_silence_counts_before_it_ends() -> None:
    """Where all seats are taken for long, no first sound comes that could be measured."""
    places = learned(32)
    allowed = places.num_allowed
    taken = placed(places, allowed - 2)
    assert placed(places, 1, 0.9 * 0.8 * LIMIT_S)
    with pytest.raises(ApiError) as refused:
        places.take(2 * LIMIT_S)
    assert places.num_allowed < len(taken)
    assert (refused.value.status, refused.value.code) == (503, "server_overloaded")


def test_a_text_that_comes_in_pieces_is_late_by_its_client() -> None:
    places = learned(32)
    allowed = places.num_allowed
    taken = [places.take(0) for _ in range(allowed)]
    for place in taken:
        place.send(0, is_whole=False)
    for place in taken:
        places.hear(place, 10)
    end(places, taken, 10)
    assert places.num_allowed == allowed


def test_only_a_first_sound_is_measured() -> None:
    places = learned(8)
    allowed = places.num_allowed
    taken = placed(places, 2)
    for now in (0.1, 5, 10):
        for place in taken:
            places.hear(place, now)
    assert places.num_allowed == allowed


def test_an_answer_that_is_late_alone_says_nothing_of_the_others() -> None:
    places = learned(8)
    allowed = places.num_allowed
    for _ in range(10):
        (alone,) = placed(places, 1)
        places.hear(alone, 9)
        places.give_back(alone, 9)
    assert places.num_allowed == allowed


def test_a_refused_client_is_told_when_an_answer_ends_on_average() -> None:
    places = SpokenPlaces(LIMIT_S)
    for _ in range(3):
        (first,) = placed(places, 1)
        places.hear(first, 0.1)
        places.give_back(first, 39)
    placed(places, 4)
    with pytest.raises(ApiError) as refused:
        places.take(0)
    assert refused.value.headers["Retry-After"] == "10"


def test_few_answers_at_once_allow_no_more() -> None:
    """What was never tried is not known."""
    places = learned(8)
    allowed = places.num_allowed
    for _ in range(100):
        taken = placed(places, 2)
        for place in taken:
            places.hear(place, 0.1)
        end(places, taken, 0.1)
    assert places.num_allowed == allowed

"""Refuses spoken answers whose first sound would come after the operator's limit.

It learns how many spoken answers the server carries, as TCP learns how much a network does: the
number grows while first sounds come in time, and falls when two in a row do not. It changes at
requests and at first sounds alone, so it costs nothing while there are none.
"""

from dataclasses import dataclass
from math import ceil, inf

from omnistage.server.common.errors import ApiError

FIRST_PLACES = 4  # before anything was measured; they double while first sounds are in time
AIM = 0.8  # of the limit: later than that counts as late, so that the limit itself is kept
DEEPEST_CUT = 0.5
TOO_LATE = 2  # so many late ones let fewer in: a single one may have a long prompt
FORGIVEN = 0.05  # of a late one, by each that is in time
TRY_S, LONGEST_TRY_S = 30.0, 960.0  # before a number that was too much is tried again; it doubles
NEAR = (0.8, 1.25)  # of the usual number: further away something has changed
MAX_RETRY_S = 60


@dataclass(slots=True, eq=False)
class SpokenPlace:
    """The place of one spoken answer, from its admission to its end."""

    number: int  # of spoken answers when it came, itself included
    era: int  # of the places: how often they had been cut
    taken_at: float
    sent_at: float | None = None  # to the stages
    may_be_late: bool = True  # not if its text comes in pieces: then its client may be late
    is_heard: bool = False

    def send(self, now: float, is_whole: bool) -> None:
        """Note when the stages get its request; again, if a stage has ended."""
        if self.sent_at is None:
            self.sent_at, self.may_be_late = now, is_whole


class SpokenPlaces:
    """Places for as many spoken answers as get their first sound within `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._aim_s = AIM * limit_s
        self._allowed = float(FIRST_PLACES)
        self._taken: set[SpokenPlace] = set()
        self._is_starting = True
        self._era = 0
        self._late = 0.0
        self._too_many = inf  # with so many first sounds were late
        self._usual = inf  # about which `_too_many` varies
        self._try_s = TRY_S
        self._cut_at = 0.0
        self._answer_s = 0.0  # how long an answer takes, smoothed
        self.num_refused = 0

    @property
    def num_allowed(self) -> int:
        """Returns how many spoken answers may be in the server; one always may."""
        return int(self._allowed)

    def take(self, now: float) -> SpokenPlace:
        """A place for a spoken answer; ApiError if its first sound would be late."""
        self._note_silence(now)
        if len(self._taken) >= self.num_allowed:
            self.num_refused += 1
            raise ApiError(
                503,
                f"The first sound would take more than {self._limit_s:g} s: the server has "
                f"{len(self._taken)} spoken answers.",
                code="server_overloaded",
                retry_after_s=self._retry_s,
            )
        place = SpokenPlace(len(self._taken) + 1, self._era, now)
        self._taken.add(place)
        return place

    @property
    def _retry_s(self) -> int:
        """Until an answer ends, on average."""
        return min(MAX_RETRY_S, max(1, ceil(self._answer_s / self.num_allowed)))

    def hear(self, place: SpokenPlace, now: float) -> None:
        """Sound of an answer has come: the first is what is measured."""
        if place.is_heard or place.sent_at is None:
            return
        place.is_heard = True
        waited_s = now - place.sent_at
        load = max(place.number, len(self._taken))
        if waited_s <= self._aim_s:
            self._late = max(0.0, self._late - FORGIVEN)
            if load >= self.num_allowed:
                self._grow(now)
        elif place.may_be_late and place.era == self._era and load > 1:
            self._late += 1
            if self._late > TOO_LATE - 1:
                self._cut(load, waited_s, now)

    def give_back(self, place: SpokenPlace, now: float) -> None:
        """An answer has ended, or was never sent."""
        self._taken.discard(place)
        if place.is_heard:
            length_s = now - place.taken_at
            self._answer_s += (length_s - self._answer_s) / (8 if self._answer_s else 1)

    def _note_silence(self, now: float) -> None:
        """Count those as late that have waited for too long already."""
        waits = [
            now - place.sent_at
            for place in self._taken
            if place.sent_at is not None
            and place.may_be_late
            and not place.is_heard
            and place.era == self._era
        ]
        late = sorted(wait for wait in waits if wait > self._aim_s)
        if len(late) >= TOO_LATE:
            self._cut(len(self._taken), late[-TOO_LATE], now)

    def _grow(self, now: float) -> None:
        """Allow one more for so many first sounds in time as are allowed."""
        if self._is_starting:
            self._allowed += 1
            return
        is_known_as_too_many = self._allowed <= self._too_many <= self._allowed + 1
        if not is_known_as_too_many or now - self._cut_at > self._try_s:
            self._allowed += 1 / self._allowed

    def _cut(self, load: int, waited_s: float, now: float) -> None:
        """Allow fewer; of those that are in the server none causes another cut."""
        kept = max(DEEPEST_CUT, self._aim_s / waited_s)
        self._allowed = max(1.0, min(self._allowed, load) * kept)
        if not NEAR[0] <= load / self._usual <= NEAR[1]:
            self._usual, self._try_s = load, TRY_S
        elif now - self._cut_at > self._try_s:  # it was tried again, in vain
            self._try_s = min(2 * self._try_s, LONGEST_TRY_S)
        self._too_many, self._cut_at = load, now
        self._is_starting = False
        self._era += 1
        self._late = 0.0

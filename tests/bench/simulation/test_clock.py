"""Simulated time, and batches beside each other on one device."""

from collections.abc import Callable
from functools import partial

import pytest

from omnistage.bench.simulation.clock import Clock, Device


def noted(clock: Clock, name: str, ends: dict[str, float]) -> Callable[[], None]:
    return lambda: ends.__setitem__(name, clock.now_s)


def test_what_is_due_at_one_time_happens_in_the_order_in_which_it_was_told() -> None:
    clock, done = Clock(), list[str]()
    for name, delay_s in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        clock.after(delay_s, partial(done.append, name))
    clock.run()
    assert done == ["a", "b", "c"]
    assert clock.now_s == 2.0


@pytest.mark.parametrize(
    ("share", "ends_s"), [(0.5, (1.0, 2.0)), (1.0, (2.0, 3.0)), (1.5, (3.0, 4.0))]
)
def test_batches_slow_each_other_by_the_sum_of_their_shares(
    share: float, ends_s: tuple[float, float]
) -> None:
    """The longer one has a second left when the other has ended, and is alone then."""
    clock, ends = Clock(), dict[str, float]()
    device = Device(clock)
    device.compute(1.0, share, noted(clock, "short", ends))
    device.compute(2.0, share, noted(clock, "long", ends))
    clock.run()
    assert (ends["short"], ends["long"]) == pytest.approx(ends_s)


def test_a_batch_that_comes_later_slows_only_what_is_left() -> None:
    clock, ends = Clock(), dict[str, float]()
    device = Device(clock)
    device.compute(2.0, 1.0, noted(clock, "first", ends))
    clock.after(1.0, lambda: device.compute(1.0, 1.0, noted(clock, "second", ends)))
    clock.run()
    assert ends == pytest.approx({"first": 3.0, "second": 3.0})
    assert device.busy_s == pytest.approx(3.0)


def test_an_idle_device_is_not_busy() -> None:
    clock = Clock()
    device = Device(clock)
    clock.after(5.0, lambda: device.compute(1.0, 0.5, lambda: None))
    clock.run()
    assert clock.now_s == 6.0
    assert device.busy_s == pytest.approx(0.5)

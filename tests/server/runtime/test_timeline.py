"""Stamps of a request on the clock of all processes."""

from omnistage.server.runtime.timeline import Timeline


def test_stamps_are_told_in_the_order_of_time_from_the_first() -> None:
    timeline = Timeline()
    timeline.mark("thinker", "received", 3_500_000)
    timeline.mark("gateway", "received", 1_000_000)
    timeline.mark("thinker", "received", 9_000_000)
    assert timeline.to_list() == [
        {"stage": "gateway", "event": "received", "ms": 0.0},
        {"stage": "thinker", "event": "received", "ms": 2.5},
    ]

"""The player, the percentiles and the gaps, exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.bench.metrics import (
    Packet,
    Span,
    gaps,
    most_in_flight,
    play,
    queue_grew,
    summarize,
)

seconds = st.integers(0, 200).map(lambda ticks: ticks / 64)  # exact in binary
packets = st.lists(st.tuples(seconds, seconds), max_size=20).map(
    lambda pairs: [Packet(*pair) for pair in sorted(pairs)]
)


def test_a_player_that_is_always_fed_never_stalls() -> None:
    assert play([Packet(1.0, 0.5), Packet(1.5, 0.5), Packet(1.75, 2.0)]) == (0, 0.0, 0.0)


def test_a_player_waits_for_late_packets_and_goes_on_where_it_was() -> None:
    # Dry at 1.5 until 2.0, then at 2.5 until 2.75; the last packet comes while it plays.
    late = [Packet(1.0, 0.5), Packet(2.0, 0.5), Packet(2.75, 1.0), Packet(3.0, 1.0)]
    assert play(late) == (2, 0.75, 0.5)


def test_silence_and_a_single_packet_have_no_stall() -> None:
    assert play([]) == (0, 0.0, 0.0)
    assert play([Packet(3.0, 0.1)]) == (0, 0.0, 0.0)


@given(packets)
def test_the_whole_stall_is_the_head_start_that_would_have_avoided_it(sound: list[Packet]) -> None:
    stall_s = play(sound).stall_s
    late = [packet._replace(arrival_s=packet.arrival_s - stall_s) for packet in sound[1:]]
    assert play([*sound[:1], *late]).stall_s == 0.0
    deficits = [
        packet.arrival_s - sound[0].arrival_s - sum(one.duration_s for one in sound[:index])
        for index, packet in enumerate(sound)
    ]
    assert stall_s == max(0.0, *deficits, 0.0)


@given(packets)
def test_the_longest_stall_is_part_of_the_whole(sound: list[Packet]) -> None:
    num_stalls, stall_s, longest_s = play(sound)
    assert longest_s <= stall_s <= num_stalls * longest_s
    assert num_stalls < max(1, len(sound))


def test_percentiles_interpolate() -> None:
    summary = summarize(range(101))
    assert summary is not None
    assert summary.model_dump() == {"mean": 50, "p50": 50, "p90": 90, "p95": 95, "p99": 99}
    halves = summarize([1.0, 2.0])
    assert halves is not None
    assert halves.p50 == 1.5
    assert halves.p99 == pytest.approx(1.99)


def test_nothing_has_no_distribution() -> None:
    assert summarize([]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_percentiles_are_in_order_and_within_the_values(values: list[float]) -> None:
    summary = summarize(values)
    assert summary is not None
    ordered = [min(values), summary.p50, summary.p90, summary.p95, summary.p99, max(values)]
    assert ordered == sorted(ordered)


def test_gaps_are_between_neighbours() -> None:
    assert gaps([1.0, 1.5, 4.0]) == [0.5, 2.5]
    assert gaps([1.0]) == []


def test_requests_in_flight_are_counted_at_their_most() -> None:
    assert most_in_flight([]) == 0
    assert most_in_flight([(0.0, 4.0), (1.0, 2.0), (1.5, 3.0), (3.5, 5.0)]) == 3


def test_a_request_that_begins_as_another_ends_is_not_beside_it() -> None:
    assert most_in_flight([(1.0, 2.0), (0.0, 1.0), (2.0, 3.0)]) == 1


def served(num_requests: int, every_s: float, lasts_s: float, servers: int = 1) -> list[Span]:
    """Requests that come at fixed times to so many servers that each take one at a time."""
    free_s, spans = [0.0] * servers, []
    for number in range(num_requests):
        free_s.sort()
        free_s[0] = max(free_s[0], number * every_s) + lasts_s
        spans.append((number * every_s, free_s[0]))
    return spans


@pytest.mark.parametrize("num_requests", [16, 64, 1000])
def test_a_queue_that_nothing_drains_grew(num_requests: int) -> None:
    assert queue_grew([served(num_requests, 1.0, 1.5)])
    assert queue_grew([served(num_requests // 2, 1.0, 1.5)] * 2)


@pytest.mark.parametrize("num_requests", [16, 64, 1000])
def test_a_server_that_keeps_up_has_no_queue_that_grew(num_requests: int) -> None:
    assert not queue_grew([served(num_requests, 1.0, 0.95)])
    assert not queue_grew([served(num_requests, 1.0, 7.5, servers=8)])  # long, but side by side


def test_a_jam_that_dissolves_is_no_queue_that_grew() -> None:
    """The later half is slower, but as many end in it as come."""
    spans = served(64, 1.0, 0.2)
    jammed = [
        (at_s, max(end_s, 60.2)) if 40 <= at_s <= 60 else (at_s, end_s) for at_s, end_s in spans
    ]
    assert not queue_grew([jammed])
    assert queue_grew([[(at_s, 80.0) if at_s >= 32 else (at_s, end_s) for at_s, end_s in spans]])


def test_of_few_requests_no_queue_is_told() -> None:
    assert not queue_grew([served(15, 1.0, 10.0)])
    assert not queue_grew([served(1, 1.0, 10.0)] * 40)
    assert not queue_grew([[]])

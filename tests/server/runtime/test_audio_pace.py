"""Gaps, stalls and the real-time factor of an answer, as the load client measures them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.bench.metrics import Packet, gaps, play
from omnistage.server.runtime.audio_pace import AudioPace

LENGTHS = st.floats(0.001, 10)


def pace_of(packets: list[Packet]) -> AudioPace:
    pace = AudioPace()
    for packet in packets:
        pace.packet(*packet)
    return pace


def test_a_player_that_runs_dry_waits_and_goes_on() -> None:
    pace = pace_of([Packet(10.0, 1.0), Packet(10.5, 1.0), Packet(13.0, 0.5), Packet(13.25, 2.0)])
    assert pace.stall_s == 1.0  # from 12 to 13
    assert pace.gaps_s == [0.5, 2.5, 0.25]
    assert pace.length_s == 4.5
    assert pace.factor(started_at=4.25) == 2.0


def test_one_packet_has_no_gap_and_no_stall() -> None:
    pace = pace_of([Packet(5.0, 1.0)])
    assert (pace.stall_s, pace.gaps_s) == (0.0, [])


@given(st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=20))
def test_it_is_what_the_load_client_measures(steps: list[tuple[float, float]]) -> None:
    now, packets = 100.0, []
    for gap_s, length_s in steps:
        now += gap_s
        packets.append(Packet(now, length_s))
    pace = pace_of(packets)
    assert pace.stall_s == pytest.approx(play(packets).stall_s, abs=1e-9)
    assert pace.gaps_s == gaps(packet.arrival_s for packet in packets)

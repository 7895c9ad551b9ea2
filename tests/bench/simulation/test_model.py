"""Curves of measured times, and lengths by distribution."""

from random import Random
from statistics import fmean, pstdev

import pytest

from omnistage.bench.simulation.model import Curve, Decoder, Edge, Length


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, 2.0), (1, 2.0), (3, 3.0), (5, 4.0), (7, 6.0), (9, 8.0), (11, 10.0)]
)
def test_a_curve_is_linear_between_what_was_measured_and_beyond(
    size: float, seconds: float
) -> None:
    assert Curve(((1, 2.0), (5, 4.0), (9, 8.0))).at(size) == pytest.approx(seconds)


def test_a_curve_of_one_point_is_the_same_everywhere() -> None:
    curve = Curve(((4, 0.5),))
    assert {curve.at(size) for size in (1, 4, 100)} == {0.5}
    assert curve.scaled(2).at(7) == 1.0


def test_a_decoder_s_time_lies_between_measured_lengths_and_rows() -> None:
    decoder = Decoder(
        "d", (("g",),), {2: Curve(((1, 1.0), (3, 2.0))), 4: Curve(((1, 3.0), (3, 6.0)))}
    )
    assert decoder.time(2, 1) == 1.0
    assert decoder.time(3, 1) == 2.0
    assert decoder.time(3, 2) == pytest.approx(3.0)


def test_the_last_size_of_a_chunk_repeats() -> None:
    edge = Edge((2, 4, 25))
    assert [edge.size(number) for number in range(5)] == [2, 4, 25, 25, 25]


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_lengths_have_their_mean_and_spread(spread: float) -> None:
    random = Random(1)
    drawn = [Length(200, spread).draw(random) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(200, rel=0.03)
    assert pstdev(drawn) / fmean(drawn) == pytest.approx(spread, rel=0.06)
    assert min(drawn) >= 1


def test_lengths_without_spread_are_all_the_mean() -> None:
    assert {Length(64).draw(Random(seed)) for seed in range(9)} == {64}

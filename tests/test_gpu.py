"""Which graphs `make gpu` serves, at which levels, and by which checkout's code."""

from pathlib import Path

from gpu import Candidate


def test_a_graph_has_the_usual_levels_or_its_own() -> None:
    assert Candidate.of("a/one.yaml", "1,8") == Candidate(Path("a/one.yaml"), "1,8")
    assert Candidate.of("a/one.yaml=1,256", "1,8") == Candidate(Path("a/one.yaml"), "1,256")
    assert Candidate.of("a/one.yaml=", "1,8").levels == ""  # no table


def test_a_graph_before_is_the_one_of_that_checkout_under_a_name_of_its_own() -> None:
    now = Candidate.of("stage_configs/one.yaml=8", "1")
    before = now.before(Path("/earlier"))
    assert before == Candidate(Path("/earlier/stage_configs/one.yaml"), "8", Path("/earlier"))
    assert (now.name, before.name) == ("one", "one-before")

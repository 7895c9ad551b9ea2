"""Which graphs `make gpu` serves, at which levels, and by which checkout's code."""

from pathlib import Path

from candidates import Candidate, hidden_problem


def test_a_graph_has_the_usual_levels_or_its_own() -> None:
    assert Candidate.of("a/one.yaml", "1,8") == Candidate(Path("a/one.yaml"), "1,8")
    assert Candidate.of("a/one.yaml=1,256", "1,8") == Candidate(Path("a/one.yaml"), "1,256")
    assert Candidate.of("a/one.yaml=", "1,8").levels == ""  # no table


def test_a_graph_before_is_the_one_of_that_checkout_under_a_name_of_its_own() -> None:
    now = Candidate.of("stage_configs/one.yaml=8", "1")
    before = now.before(Path("/earlier"))
    assert before == Candidate(Path("/earlier/stage_configs/one.yaml"), "8", Path("/earlier"))
    assert (now.name, before.name) == ("one", "one-before")


def test_an_earlier_checkout_whose_package_would_be_hidden_is_refused(tmp_path: Path) -> None:
    package = tmp_path / ".pkg" / "omnistage"
    package.mkdir(parents=True)
    assert "hides the earlier one" in (hidden_problem(tmp_path) or "")
    (package / "__init__.py").touch()
    assert hidden_problem(tmp_path) is None

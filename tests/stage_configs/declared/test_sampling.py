"""Defaults of sampling hold where nothing was asked for, and give way to what was."""

from omnistage.stage_configs.declared.sampling import StageParameters, with_defaults


def test_what_was_asked_for_wins() -> None:
    defaults = {"temperature": 0.7, "top_k": 5}
    assert with_defaults(defaults, {"temperature": 0}) == {"temperature": 0, "top_k": 5}


def test_a_default_number_of_tokens_moves_as_far_as_it_must() -> None:
    assert with_defaults({"min_tokens": 9}, {"max_tokens": 4})["min_tokens"] == 4
    assert with_defaults({"max_tokens": 4}, {"min_tokens": 9})["max_tokens"] == 9
    assert with_defaults({"min_tokens": 2}, {"max_tokens": 4})["min_tokens"] == 2


def test_only_parameters_with_a_value_are_given() -> None:
    assert StageParameters(temperature=0.5, seed=None).given == {"temperature": 0.5}
    assert StageParameters().given == {}

"""The order of stages, and the way to some of them."""

from omnistage.stage_configs.declared.paths import entries_of, ordered, path_to

NAMES = ("dit", "code2wav", "talker", "thinker", "alone")
EDGES = (("thinker", "talker"), ("talker", "code2wav"), ("thinker", "dit"))


def test_stages_come_after_all_that_feed_them() -> None:
    assert ordered(NAMES, EDGES) == ("thinker", "alone", "dit", "talker", "code2wav")


def test_a_cycle_and_what_it_feeds_are_left_out() -> None:
    assert ordered(("a", "b", "c", "d"), (("b", "c"), ("c", "b"), ("c", "d"))) == ("a",)


def test_the_path_has_what_is_needed_alone_and_begins_where_no_edge_leads() -> None:
    assert path_to(NAMES, EDGES, frozenset({"code2wav"})) == ("thinker", "talker", "code2wav")
    assert path_to(NAMES, EDGES, frozenset({"dit"})) == ("thinker", "dit")
    assert entries_of(NAMES, EDGES, frozenset({"dit", "alone"})) == ("thinker", "alone")


def test_another_graph_of_the_same_stages_has_its_own_path() -> None:
    assert path_to(NAMES, EDGES[:1], frozenset({"code2wav"})) == ("code2wav",)
    assert path_to(NAMES, EDGES, frozenset({"code2wav"})) == ("thinker", "talker", "code2wav")

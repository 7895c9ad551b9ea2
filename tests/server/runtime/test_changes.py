"""What a replica that starts later is told of what its stage was told."""

import pytest

from omnistage.server.runtime.changes import Change, Changes, without


def added(name: str, pinned: bool = False) -> Change:
    return "add_lora", {"name": name, "path": f"/{name}", "pinned": pinned}


def removed(name: str) -> Change:
    return "remove_lora", {"name": name}


def pinned(name: str, is_pinned: bool = True) -> Change:
    return "pin_lora", {"name": name, "pinned": is_pinned}


def loaded(path: str | None) -> Change:
    return "load_weights", {"path": path}


@pytest.mark.parametrize(
    ("told", "repeated"),
    [
        ([], []),
        ([added("a"), added("b")], [added("a"), added("b")]),
        ([added("a"), removed("a")], []),
        ([added("a"), removed("a"), added("a")], [added("a")]),
        ([added("a"), pinned("a"), pinned("a", False)], [added("a"), pinned("a", False)]),
        ([added("a"), added("b"), added("a")], [added("b"), added("a")]),
        ([removed("of the file")], [removed("of the file")]),
        ([removed("x"), added("x"), removed("x")], [removed("x")]),
        ([pinned("of the file")], [pinned("of the file")]),
        ([added("a"), loaded("/1"), loaded("/2")], [loaded("/2"), added("a")]),
        ([loaded("/1"), loaded(None)], [loaded("/1")]),
        ([("sleep", {"level": 1}), ("list_loras", {}), ("start_profile", {})], []),
    ],
)
def test_what_is_void_is_not_repeated(told: list[Change], repeated: list[Change]) -> None:
    changes = Changes()
    for command, arguments in told:
        changes.note("talker", command, arguments)
    assert changes.of("talker") == repeated
    assert changes.of("thinker") == []


@pytest.mark.parametrize(
    ("missed", "done", "left"),
    [
        ([loaded("/1"), added("a"), added("b")], added("a"), (loaded("/1"), added("b"))),
        ([loaded("/1"), loaded("/2"), added("a")], loaded("/3"), (added("a"),)),
        ([loaded("/1"), loaded(None)], loaded(None), (loaded("/1"),)),
        ([added("a")], loaded("/1"), (added("a"),)),
    ],
)
def test_other_weights_make_up_for_those_that_were_missed_and_the_last_ones_again_do_not(
    missed: list[Change], done: Change, left: tuple[Change, ...]
) -> None:
    assert without(missed, done) == left

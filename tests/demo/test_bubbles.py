"""A conversation as the page shows it."""

from omnistage.demo.bubbles import WAITING, bubbles
from omnistage.demo.chat import ChatTurn


def test_files_come_before_words_and_after_the_answer() -> None:
    turn = ChatTurn("what?", files=("in.png",), answer="this", answer_files=("out.wav",))
    assert [(one["role"], one["content"]) for one in bubbles([turn])] == [
        ("user", {"path": "in.png"}),
        ("user", "what?"),
        ("assistant", "this"),
        ("assistant", {"path": "out.wav"}),
    ]


def test_an_answer_that_has_not_begun_is_waited_for() -> None:
    assert bubbles([ChatTurn("what?")], is_running=True)[-1]["content"] == WAITING
    assert bubbles([ChatTurn("what?", answer="th")], is_running=True)[-1]["content"] == "th"


def test_a_failure_stands_beside_what_had_come() -> None:
    shown = bubbles([ChatTurn("what?", answer="half", failure="The server is gone.")])
    assert [one["content"] for one in shown[1:]] == ["half", "**Failed.** The server is gone."]

"""One request in the graph: what it waits for, and how it ended."""

import pytest
from support.api.bodies import chat_request

from omnistage.server.common.errors import ApiError
from omnistage.server.common.outcome import Outcome
from omnistage.server.runtime.flight import Flight


def flight_of(*outputs: str) -> Flight:
    """A request that began at 100 s and has 10 s for the first chunk of each output."""
    request = chat_request("a", outputs, {})
    return Flight(request, [], 100.0, list(outputs), dict.fromkeys(outputs, 110.0))


def test_of_outputs_due_at_once_the_one_asked_for_first_is_next() -> None:
    assert flight_of("text", "audio").next_due == "text"
    assert flight_of("audio", "text").next_due == "audio"


def test_an_output_that_has_ended_is_not_due_any_more() -> None:
    flight = flight_of("text", "audio")
    flight.deadlines["audio"] = 200.0
    flight.unfinished.remove("text")
    assert flight.next_due == "audio"


def test_only_what_is_unfinished_is_put_off() -> None:
    flight = flight_of("text", "audio")
    flight.unfinished.remove("text")
    flight.extend(5.0)
    assert flight.deadlines == {"text": 110.0, "audio": 115.0}


@pytest.mark.parametrize(
    ("unfinished", "failure", "is_cancelled", "outcome"),
    [
        ([], None, False, Outcome.FINISHED),
        (["audio"], None, True, Outcome.CANCELLED),
        (["audio"], ApiError(400, "too long"), True, Outcome.REFUSED),
        (["audio"], ApiError(504, "late"), True, Outcome.FAILED),
        (["audio"], ValueError(), True, Outcome.FAILED),
    ],
)
def test_its_end_says_whether_stages_are_told_to_stop_and_what_is_counted(
    unfinished: list[str], failure: Exception | None, is_cancelled: bool, outcome: Outcome
) -> None:
    flight = flight_of("text", "audio")
    flight.unfinished = unfinished
    flight.failure = failure
    flight.end()
    assert flight.ended.is_set()
    assert flight.is_cancelled == is_cancelled
    assert flight.outcome is outcome

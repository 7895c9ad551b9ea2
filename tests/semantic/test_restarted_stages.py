"""After the death of each of its stages the embedded model answers and speaks as before."""

import os
import signal

import pytest
from support.faults.chaos import ready_again, victims
from support.oracles.meaning import SmallServer, assert_said
from support.waiting import until

pytestmark = pytest.mark.engine

QUESTION, ANSWER = "Which day comes after Monday?", "Tuesday comes after Monday."


SPEECH = ("talker", "code2wav")


@pytest.mark.parametrize(
    "stages",
    [SPEECH, pytest.param(("thinker", *SPEECH, "dit"), marks=pytest.mark.repeat)],
    ids=["those of speech", "all"],
)
async def test_killed_stages_come_back_with_right_answers(
    stages: tuple[str, ...], small: SmallServer
) -> None:
    """One after the other while those before are still loading; other tests have the times."""
    before = small.server.generations()
    assert before.keys() >= {*stages}
    for stage in stages:
        found = [one for one in victims(small.server) if one.stage == stage]
        (worker,) = [one for one in found if one.role == "worker"]
        os.kill(worker.pid, signal.SIGKILL)
    await until(lambda: all(small.server.generations()[one] > before[one] for one in stages), 60)
    await ready_again(small.server)
    assert small.answer(QUESTION) == ANSWER
    assert_said(small.speak(ANSWER), ANSWER)

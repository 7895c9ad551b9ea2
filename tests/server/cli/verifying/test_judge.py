"""Verdicts: ties are told from errors by their distance, and the first place is named."""

import numpy as np
import pytest

from omnistage.server.cli.verifying.asking import Answered
from omnistage.server.cli.verifying.judge import OF_HALVES, TOLERANCES, Tolerance, Verdict, judged
from omnistage.stages.messages.to_reference import AskedQuestion, Choices, Found, Task

EXACT = TOLERANCES["float32"]
TOKENS = [5, 6, 7]


@pytest.mark.parametrize(
    ("gaps", "tolerance", "verdict", "first"),
    [
        ([0, 0, 0], EXACT, Verdict.EQUAL, ""),
        ([0, 0.0005, 0], EXACT, Verdict.TIED, "token 1: 6; the reference's is 8, 0.0005 nats"),
        ([0, 0.3, 0], EXACT, Verdict.DIFFERENT, "token 1: 6; the reference's is 8, 0.3 nats"),
        ([0, 0.3, 0], OF_HALVES, Verdict.TIED, "token 1: 6; the reference's is 8, 0.3 nats"),
        ([0.3, 0, 0.7], OF_HALVES, Verdict.DIFFERENT, "token 2: 7; the reference's is 8, 0.7"),
        ([0, float("nan"), 0], OF_HALVES, Verdict.DIFFERENT, "token 1: 6"),
        ([0, 0], EXACT, Verdict.DIFFERENT, "3 text; the reference ends after 2"),
    ],
)
def test_a_text_is_equal_tied_or_different(
    gaps: list[float], tolerance: Tolerance, verdict: Verdict, first: str
) -> None:
    asked = AskedQuestion(Task.CHAT, {}, tokens=TOKENS)
    found = Found(Choices([8] * len(gaps), gaps, [-1.0] * len(gaps)))
    (part,) = judged(Answered("text in", asked), found, tolerance).parts
    assert part.verdict is verdict
    assert part.first.startswith(first)
    assert bool(part.first) == bool(first)


@pytest.mark.parametrize(
    ("place", "first"),
    [
        (1, "frame 0, codebook 1: 2; the reference's is 9, 3 nats likelier"),
        (2, "frame 1, codebook 0: 3; the reference's is 9, 3 nats likelier"),
        (4, "frame 2, codebook 0: the end; the reference's is 9, 3 nats likelier"),
    ],
)
def test_a_code_is_named_by_its_frame_and_codebook(place: int, first: str) -> None:
    gaps = [0.0] * 5
    gaps[place] = 3.0
    asked = AskedQuestion(Task.CHAT, {}, frames=[[1, 2], [3, 4]], has_ended=True)
    found = Found(codes=Choices([9] * 5, gaps, [-1.0] * 5))
    (part,) = judged(Answered("speech out", asked), found, OF_HALVES).parts
    assert (part.what, part.verdict, part.first) == ("codes", Verdict.DIFFERENT, first)
    assert part.largest == 3.0


@pytest.mark.parametrize(("apart", "verdict"), [(0.005, Verdict.EQUAL), (0.02, Verdict.DIFFERENT)])
def test_log_probabilities_differ_beyond_their_tolerance(apart: float, verdict: Verdict) -> None:
    asked = AskedQuestion(Task.CHAT, {}, tokens=TOKENS)
    found = Found(Choices(TOKENS, [0.0] * 3, [-1.0] * 3))
    answered = Answered("text in", asked, logprobs=[-1.0, -1.0 - apart, -1.0])
    part = judged(answered, found, EXACT).parts[1]
    assert (part.what, part.verdict) == ("log-probabilities", verdict)
    assert part.largest == pytest.approx(apart)
    assert part.first.startswith("token 1: ") == (verdict is Verdict.DIFFERENT)


@pytest.mark.parametrize(
    ("ours", "verdict", "first"),
    [
        ([0.1, 0.2, 0.3], Verdict.EQUAL, ""),
        ([0.1, 0.2001, 0.3], Verdict.EQUAL, ""),
        ([0.1, 0.25, 0.4], Verdict.DIFFERENT, "sample 1: 0.2500, 0.2000"),
        ([0.1, 0.2], Verdict.DIFFERENT, "2 samples; the reference has 3"),
        ([0.1, float("nan"), 0.3], Verdict.DIFFERENT, "sample 1: nan, 0.2000"),
        (None, Verdict.DIFFERENT, "0 samples; the reference has 3"),
    ],
)
def test_samples_are_compared_one_by_one(
    ours: list[float] | None, verdict: Verdict, first: str
) -> None:
    heard = None if ours is None else np.array(ours, np.float32)
    found = Found(samples=np.array([0.1, 0.2, 0.3], np.float32).tobytes())
    answered = Answered("speech out", AskedQuestion(Task.SPEECH, {}), samples=heard)
    (part,) = judged(answered, found, EXACT).parts
    assert (part.verdict, part.first) == (verdict, first)


@pytest.mark.parametrize(
    ("level", "tolerance", "verdict"),
    [
        (101, EXACT, Verdict.EQUAL),
        (102, EXACT, Verdict.DIFFERENT),
        (130, OF_HALVES, Verdict.EQUAL),
        (150, OF_HALVES, Verdict.DIFFERENT),
    ],
)
def test_a_pixel_is_named_by_its_place(level: int, tolerance: Tolerance, verdict: Verdict) -> None:
    theirs = np.full((2, 3, 3), 100, np.uint8)
    ours = theirs.copy()
    ours[1, 2, 0] = level
    answered = Answered("image", AskedQuestion(Task.IMAGE, {}), pixels=[ours])
    (part,) = judged(answered, Found(pixels=[theirs.tobytes()]), tolerance).parts
    assert (part.verdict, part.largest) == (verdict, level - 100)
    is_far = verdict is Verdict.DIFFERENT
    assert part.first == (f"image 0, x 2, y 1, channel 0: {level}, 100" if is_far else "")


def test_images_of_another_size_differ() -> None:
    answered = Answered(
        "image", AskedQuestion(Task.IMAGE, {}), pixels=[np.zeros((2, 2, 3), np.uint8)]
    )
    (part,) = judged(answered, Found(pixels=[bytes(27)]), EXACT).parts
    assert (part.verdict, part.first) == (Verdict.DIFFERENT, "other images, or of other sizes")


def test_an_answer_without_parts_is_a_problem() -> None:
    assert judged(Answered("text in", AskedQuestion(Task.CHAT, {})), Found(), EXACT).problem

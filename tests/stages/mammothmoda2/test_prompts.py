"""Ids that are read and made, and the rows that the denoiser gets of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from references.mammothmoda2_drawings import DRAWINGS, ID_SIDE, Drawing
from support.oracles.mammothmoda2 import recorded

from omnistage.stages.mammothmoda2.prompts import OWN, IdsPrompt, Prompts
from omnistage.stages.mammothmoda2.step_schema import ANY, IMAGE_END, LINE_END, UNGUIDED
from omnistage.stages.worker.failure import RequestError


@pytest.fixture(scope="module")
def config(tiny_mammothmoda2: Path) -> Any:
    return json.loads((tiny_mammothmoda2 / "config.json").read_text())


@pytest.fixture(scope="module")
def prompts(tiny_mammothmoda2: Path, config: Any) -> Prompts:
    return Prompts(tiny_mammothmoda2, config)


@pytest.mark.parametrize("drawing", DRAWINGS, ids=str)
def test_prompts_and_numbers_of_ids_are_the_published_codes(
    drawing: Drawing, prompts: Prompts, tiny_mammothmoda2: Path
) -> None:
    published = recorded(tiny_mammothmoda2)
    width, height = drawing.size
    prompt = prompts.image(drawing.prompt, {"width": width, "height": height})
    assert list(prompt.ids) == published.of(drawing.prompt, "prompt").tolist()
    made = published.of(drawing.prompt, "ids")
    assert (prompt.num_ids, prompt.num_made) == (len(made), len(made) + 2)
    # What stands at the ends of lines is what was found there.
    is_end = np.array(prompt.followers[: len(made) - 1]) == LINE_END
    assert (made[1:][is_end] == 288).all()
    assert is_end.sum() == height // ID_SIDE


def test_the_last_ids_are_forced_and_one_more_is_made_so_that_the_end_is_read() -> None:
    prompt = IdsPrompt([5] * 12, (2, 2))
    line = [ANY, LINE_END, ANY]
    assert prompt.followers == [*line, ANY, LINE_END, IMAGE_END, IMAGE_END, IMAGE_END]
    assert len(prompt.followers) == prompt.num_made


def test_unguided_only_the_beginning_of_the_image_counts(prompts: Prompts) -> None:
    prompt = prompts.image("a cat", {"width": 64, "height": 64})
    places = prompt.columns[UNGUIDED].tolist()
    assert places == [-1] * (len(prompt.ids) - OWN) + list(range(OWN))
    negative = prompts.negative("rain")
    assert set(negative.columns[UNGUIDED].tolist()) == {-1}
    assert (negative.num_made, negative.num_rows) == (1, len(negative.ids))


def test_rows_are_of_the_text_and_then_of_the_image(prompts: Prompts) -> None:
    prompt = prompts.image("a cat", {"width": 64, "height": 64})
    num_read = len(prompt.ids) - OWN
    marks = 2  # of the image's start, and before its ids
    assert prompt.num_image_rows == marks + prompt.num_ids + 1
    assert prompt.num_rows == num_read + prompt.num_image_rows
    left_out = [place for start, stop in prompt.left_out for place in range(start, stop)]
    assert min(left_out) == num_read
    assert all(prompt.ids[place] < 288 for place in left_out)


def test_without_a_negative_text_the_published_one_counts(prompts: Prompts) -> None:
    assert len(prompts.negative(None).ids) > 200
    assert len(prompts.negative("").ids) < 60


@pytest.mark.parametrize(
    ("name", "value"),
    [("gen_condition_mode", "text"), ("gen_text_condition_with_answer", True)],
)
def test_conditions_that_are_not_served_are_refused(
    name: str, value: object, config: Any, tiny_mammothmoda2: Path
) -> None:
    with pytest.raises(ValueError, match=name):
        Prompts(tiny_mammothmoda2, {**config, name: value})


def test_the_marks_of_a_template_are_no_words(prompts: Prompts) -> None:
    with pytest.raises(RequestError, match="has '<\\|endofline\\|>'"):
        prompts.image("a<|endofline|>", {})

"""Where image ids stand, and what the pipeline gets of them."""

import numpy as np
import pytest
import torch
from diffusers import GlmImagePipeline

from omnistage.stages.glm_image.blank import blank_ids
from omnistage.stages.glm_image.grids import positions_of, prior_ids, prompt_positions, sides_of


def test_a_grid_begins_behind_the_greatest_position_of_the_one_before() -> None:
    assert positions_of(5, [(1, 3), (2, 2)]).tolist() == [
        [5, 5, 5],
        [5, 5, 6],
        [5, 5, 7],
        [8, 8, 8],
        [8, 8, 9],
        [8, 9, 8],
        [8, 9, 9],
    ]


def test_a_draft_without_rows_takes_its_columns_places() -> None:
    assert positions_of(5, [(0, 3), (1, 1)]).tolist() == [[8, 8, 8]]


def test_ids_of_images_in_a_prompt_stand_in_their_grid_and_words_count_on() -> None:
    is_image = np.array([False, True, True, True, False, True, False])
    positions, following = prompt_positions(is_image, [(1, 3), (1, 1)])
    rows = [[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 1, 3], [4, 4, 4], [5, 5, 5], [6, 6, 6]]
    assert (positions.tolist(), following) == (rows, 7)
    positions, following = prompt_positions(np.zeros(2, bool), [])
    assert (positions.tolist(), following) == ([[0, 0, 0], [1, 1, 1]], 2)


@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (4, 2)])
def test_ids_are_doubled_as_the_pipeline_doubles_them(grid: tuple[int, int]) -> None:
    ids = np.random.default_rng(0).integers(0, 16384, grid[0] * grid[1])
    expected = GlmImagePipeline._upsample_token_ids(torch.from_numpy(ids), *grid)
    assert prior_ids(ids.tolist(), grid).tolist() == expected[0].tolist()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1024, 1024)),
        ({"height": None, "width": None}, (1024, 1024)),
        ({"height": 64, "width": 96}, (64, 96)),
    ],
)
def test_an_image_without_a_size_has_the_models_own(
    fields: dict[str, int | None], expected: tuple[int, int]
) -> None:
    assert sides_of(fields) == expected


def test_stand_ins_have_the_size_of_the_warm_up() -> None:
    blank = blank_ids("folder", {"height": 64, "width": 96})
    assert (blank["height"], blank["width"]) == (64, 96)
    assert (blank["prior_token_ids"].shape, blank["prior_token_ids"].dtype) == ((1, 24), np.int64)

"""Grids of image ids, and where their ids stand."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Grid = tuple[int, int]  # rows, columns

ID_SIDE = 32  # pixels of the side of what one id stands for
PRIOR_SIDE = 16  # and of one of the pipeline's, which takes each id four times
DEFAULT_SIDE = 1024  # pixels of an image whose size nobody said


def sides_of(fields: Mapping[str, object]) -> Grid:
    """Height and width of an image in pixels, as they were asked for or as they are otherwise."""
    height, width = (fields.get(name) or DEFAULT_SIDE for name in ("height", "width"))
    assert isinstance(height, int)
    assert isinstance(width, int)
    return height, width


def positions_of(start: int, grids: Sequence[Grid]) -> Ints:
    """Positions [n, 3] of the ids of grids that follow each other, from `start` on.

    An id has its grid's own, and this and its row's number, and its column's. A grid begins behind
    the greatest position of the one before.
    """
    places = []
    for rows, columns in grids:
        row, column = np.divmod(np.arange(rows * columns), max(columns, 1))
        places.append(start + np.stack([np.zeros_like(row), row, column], axis=1))
        start += max(rows, columns)
    return np.concatenate(places)


def prompt_positions(is_image: npt.NDArray[np.bool_], grids: Sequence[Grid]) -> tuple[Ints, int]:
    """Positions [n, 3] of a prompt's ids, and the next one: texts count on, images are grids.

    `is_image`: true for the ids of images, of which each is a run.
    """
    places, start, at = [], 0, 0
    begins = np.flatnonzero(is_image & ~np.concatenate([[False], is_image[:-1]]))
    for begin, grid in zip(begins, grids, strict=True):
        words = np.arange(start, start + begin - at)
        start += len(words)
        places += [words[:, None].repeat(3, axis=1), positions_of(start, [grid])]
        start += max(grid)
        at = begin + grid[0] * grid[1]
    words = np.arange(start, start + len(is_image) - at)
    return np.concatenate([*places, words[:, None].repeat(3, axis=1)]), start + len(words)


def prior_ids(ids: Sequence[int] | Ints, grid: Grid) -> Ints:
    """The ids of an image as the pipeline takes them: [4 * n], each twice in both directions."""
    whole = np.array(ids, np.int64).reshape(grid)
    return whole.repeat(2, axis=0).repeat(2, axis=1).ravel()

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


def prior_ids(ids: Sequence[int], grid: Grid) -> Ints:
    """The ids of an image as the pipeline takes them: [4 * n], each twice in both directions."""
    whole = np.array(ids, np.int64).reshape(grid)
    return whole.repeat(2, axis=0).repeat(2, axis=1).ravel()

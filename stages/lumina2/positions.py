"""Positions of tokens in such denoisers, and the rotations that they are.

A token has three: of what it belongs to, of its row and of its column. Texts have their number in
all three. An image's first is that of the text's end, or the greatest behind the image before it.
"""

from collections.abc import Sequence

import torch

THETA = 10_000.0
MAX_REFERENCES = 5  # images that an image may be made of
Size = tuple[int, int]  # rows and columns of an image's tokens


def text_positions(length: int, device: torch.device) -> torch.Tensor:
    """Return the positions [length, 3] of a text."""
    return torch.arange(length, device=device)[:, None].expand(length, 3)


def image_positions(sizes: Sequence[Size], device: torch.device) -> torch.Tensor:
    """Return the positions [tokens, 3] of images behind each other, from 0 on."""
    start, places = 0, []
    for rows, columns in sizes:
        row, column = (
            torch.arange(rows * columns, device=device).div(columns, rounding_mode="floor"),
            torch.arange(rows * columns, device=device).remainder(columns),
        )
        places.append(torch.stack([torch.full_like(row, start), row, column], dim=1))
        start += max(rows, columns)
    return torch.cat(places) if places else torch.zeros(0, 3, dtype=torch.long, device=device)


def after(sizes: Sequence[Size]) -> int:
    """Return the first position behind images, from 0 on."""
    return sum(max(size) for size in sizes)


def rotations(positions: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """Return rotations, complex64 [..., sum(axes) / 2], of positions [..., 3].

    `axes`: the numbers of a head that each of the three positions rotates.
    """
    angles = []
    for axis, width in enumerate(axes):
        exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
        angles.append(positions[..., axis, None] * THETA**-exponents)
    angle = torch.cat(angles, dim=-1)
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)

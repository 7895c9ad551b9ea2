"""Draws many drawings at once on a device, with edges smoothed; the training's pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from image.scenes import KINDS, Drawing
from pictures import RGB
from world import COLOURS

_SQUARE_SIDE = 0.9
_TIP, _DENT = 1.05, 0.48  # of a star, in radii; the dent in tips


@dataclass(frozen=True)
class Contents:
    """Drawings as tensors.

    Colours [n, 4] of ground and shapes, kinds [n, 3] (-1: none), and centres and radius [n, 3, 3],
    shares of a side.
    """

    colours: torch.Tensor
    kinds: torch.Tensor
    places: torch.Tensor

    def __getitem__(self, rows: torch.Tensor) -> "Contents":
        return Contents(self.colours[rows], self.kinds[rows], self.places[rows])

    def to(self, device: torch.device) -> "Contents":
        """The same on a device."""
        return Contents(self.colours.to(device), self.kinds.to(device), self.places.to(device))


def contents(drawings: Sequence[Drawing]) -> Contents:
    """The tensors of some drawings, on the CPU."""
    colours = torch.zeros(len(drawings), 4, dtype=torch.long)
    kinds = torch.full((len(drawings), 3), -1)
    places = torch.zeros(len(drawings), 3, 3)
    for row, made in enumerate(drawings):
        colours[row, 0] = COLOURS.index(made.ground)
        for index, one in enumerate(made.things):
            colours[row, index + 1] = COLOURS.index(one.colour)
            kinds[row, index] = KINDS.index(one.kind)
            places[row, index] = torch.tensor([one.x, one.y, one.radius])
    return Contents(colours, kinds, places)


@cache
def palette(device: torch.device) -> torch.Tensor:
    """The colours' values [colours, 3], -1 to 1; copied to a device once, as copies wait for it."""
    return torch.tensor([RGB[name] for name in COLOURS]).to(device) / 127.5 - 1


def render(made: Contents, side: int, vary: float = 1.0) -> torch.Tensor:
    """Pictures [n, 3, side, side], -1 to 1, moved, resized and tinted a little, `vary` times."""
    device, count = made.kinds.device, len(made.kinds)
    tint = palette(device)[made.colours]
    tint = (tint + vary * 0.04 * (2 * torch.rand_like(tint) - 1)).clamp(-1, 1)
    noise = 2 * torch.rand(count, 3, 3, device=device) - 1
    centres = made.places[..., :2] + vary * 0.012 * noise[..., :2]
    radius = made.places[..., 2] * (1 + vary * 0.06 * noise[..., 2])
    steps = (torch.arange(side, device=device) + 0.5) / side
    image = tint[:, 0, :, None, None].expand(-1, -1, side, side)
    for index in range(3):
        x = steps[None, None, :] - centres[:, index, 0, None, None]
        y = steps[None, :, None] - centres[:, index, 1, None, None]
        outside = _distance(x, y, radius[:, index, None, None], made.kinds[:, index, None, None])
        cover = (0.5 - outside * side).clamp(0, 1)[:, None]
        image = image + cover * (tint[:, index + 1, :, None, None] - image)
    return image


def _distance(
    x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor, kind: torch.Tensor
) -> torch.Tensor:
    """Signed distances to the edge of each one's kind, negative inside."""
    circle = (x * x + y * y + 1e-12).sqrt() - radius
    square = torch.maximum(x.abs(), y.abs()) - _SQUARE_SIDE * radius
    side = (1.8 * x.abs() - (y + radius)) / math.hypot(1.8, 1)
    triangle = torch.maximum(y - 0.8 * radius, side)
    distance = torch.where(kind == 0, circle, square)
    distance = torch.where(kind == 2, triangle, distance)
    distance = torch.where(kind == 3, _star(x, y, radius), distance)
    return torch.where(kind < 0, torch.ones_like(distance), distance)


def _star(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """To the edge between a tip and a dent, all ten folded onto one."""
    wedge = math.pi / 5
    angle = torch.remainder(torch.atan2(x, -y + 0 * x), 2 * wedge)
    angle = wedge - (angle - wedge).abs()
    far = (x * x + y * y + 1e-12).sqrt()
    along, across = far * angle.cos(), far * angle.sin()
    edge_x, edge_y = _DENT * math.cos(wedge) - 1, _DENT * math.sin(wedge)
    length = math.hypot(edge_x, edge_y)
    return ((along - _TIP * radius) * edge_y - across * edge_x) / length

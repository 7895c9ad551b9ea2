"""Places of an image's parts: the cells of a square table, and the table's embeddings."""

import torch
from torch import Tensor, nn

MAX_PERIOD = 10_000


class CellEmbedding(nn.Module):
    """A sine and cosine embedding of each cell of a square table; the first half is its column's.

    The table is a buffer of the checkpoint's name `pos_embed`, and made where the checkpoint has
    none.
    """

    pos_embed: Tensor

    def __init__(self, side: int, hidden_size: int) -> None:
        super().__init__()
        places = sines_and_cosines(torch.arange(side), hidden_size // 2)
        columns = places[None].expand(side, -1, -1)
        rows = places[:, None].expand(-1, side, -1)
        table = torch.cat([columns, rows], dim=-1).flatten(0, 1)
        self.register_buffer("pos_embed", table.float())

    def forward(self, cells: Tensor) -> Tensor:
        """Return the embeddings [..., hidden_size] of cells, int64 [...]."""
        return self.pos_embed[cells]


def sines_and_cosines(places: Tensor, size: int) -> Tensor:
    """Return float64 [n, size] of places [n]: sines, then cosines, of falling frequencies."""
    steps = torch.arange(size // 2, dtype=torch.float64) / (size // 2)
    angles = places.double()[:, None] * MAX_PERIOD**-steps
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def cells_of(height: int, width: int, side: int) -> Tensor:
    """Return the cells, int64 [height * width], of an image of so many parts in a table."""
    return (torch.arange(height)[:, None] * side + torch.arange(width)).flatten()


def parted(image: Tensor, side: int) -> Tensor:
    """Return an image [channels, height, width] as parts [n, side * side * channels]."""
    channels, height, width = image.shape
    parts = image.reshape(channels, height // side, side, width // side, side)
    return parts.permute(1, 3, 2, 4, 0).reshape(-1, side * side * channels)


def joined_parts(parts: Tensor, height: int, width: int, side: int) -> Tensor:
    """Return the image [channels, height, width] of parts [n, side * side * channels]."""
    rows = parts.reshape(height // side, width // side, side, side, -1)
    return rows.permute(4, 0, 2, 1, 3).reshape(-1, height, width)

"""Places of latents in DreamID-Omni's denoiser, as rotations of queries and keys."""

from collections.abc import Sequence

import torch
from torch import Tensor

THETA = 10_000.0
REFERENCE_FRAME = 150  # latents of faces are at this place and its multiples: a video ends before

Rotation = tuple[Tensor, Tensor]  # cosines and sines, float32 [1, tokens, 1, head size]


def video_rotation(
    grid: tuple[int, int, int], num_faces: int, head_size: int, device: torch.device
) -> Rotation:
    """Return the rotation of a grid (latents, height, width) whose last latents are faces."""
    frames, height, width = grid
    own = torch.arange(frames - num_faces, device=device)
    faces = REFERENCE_FRAME * torch.arange(1, num_faces + 1, device=device)
    times = _angles(torch.cat([own, faces]), head_size - 2 * _side_size(head_size))
    rows, columns = (
        _angles(torch.arange(n, device=device), _side_size(head_size)) for n in (height, width)
    )
    parts = (
        times[:, None, None].expand(-1, height, width, -1),
        rows[None, :, None].expand(frames, -1, width, -1),
        columns[None, None].expand(frames, height, -1, -1),
    )
    return _rotation(torch.cat(parts, dim=-1).flatten(0, 2))


def audio_rotation(
    length: int, voices: Sequence[int], scaling: Tensor, head_size: int, device: torch.device
) -> Rotation:
    """Return the rotation of `length` latents, the last of which are voices of these lengths.

    `scaling`: latents of a video for each latent of its audio, []. The published code divides by
    it in the dtype that it has, so the places of voices depend on that.
    """
    first = int(REFERENCE_FRAME / scaling)
    places = [torch.arange(length - sum(voices), device=device)]
    for number, one in enumerate(voices, start=1):
        places.append(number * first + torch.arange(one, device=device))
    time_size = head_size - 2 * _side_size(head_size)
    angles = _angles(torch.cat(places), time_size, scaling.item())
    still = angles.new_zeros(length, _side_size(head_size))
    return _rotation(torch.cat([angles, still], dim=1))


def _side_size(head_size: int) -> int:
    """Return how many numbers of a head are rotated by a row, or by a column."""
    return 2 * (head_size // 6)


def _angles(places: Tensor, size: int, scaling: float = 1.0) -> Tensor:
    """Return float32 [places, size / 2]."""
    steps = torch.arange(0, size, 2, dtype=torch.float32, device=places.device)
    return torch.outer(places, scaling * (1.0 / THETA ** (steps / size)))


def _rotation(angles: Tensor) -> Rotation:
    both = angles.repeat_interleave(2, dim=1)[None, :, None]
    return both.cos(), both.sin()

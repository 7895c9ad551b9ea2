"""The flow's noise: by seed and patch, whatever the batch, and as normal as it says."""

import torch

from omnistage.stages.voxcpm2.flow import normal_noise


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_noise_is_that_of_its_seed_and_patch_in_any_batch() -> None:
    together = normal_noise(numbers(1, 2, 1), numbers(0, 0, 5), 256)
    for row, (seed, patch) in enumerate(((1, 0), (2, 0), (1, 5))):
        assert torch.equal(together[row], normal_noise(numbers(seed), numbers(patch), 256)[0])
    assert len({tuple(row.tolist()) for row in together}) == 3


def test_noise_is_normal() -> None:
    noise = normal_noise(torch.arange(200), torch.zeros(200, dtype=torch.int64), 256)
    assert noise.isfinite().all()
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    for limit, expected in ((1, 0.683), (2, 0.954), (3, 0.997)):
        assert abs((noise.abs() < limit).float().mean() - expected) < 0.01
    assert torch.corrcoef(noise.T[:8].contiguous()).fill_diagonal_(0).abs().max() < 0.3

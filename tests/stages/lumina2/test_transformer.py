"""Tokens of texts whose lengths differ, with more behind them."""

import torch

from omnistage.stages.lumina2.transformer import moved_together


def test_what_is_masked_goes_to_the_end_and_the_rest_keeps_its_order() -> None:
    mask = torch.tensor([[1, 0, 0, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    tokens = torch.arange(15.0).view(3, 5, 1)
    moved, lengths = moved_together(tokens, mask)
    assert moved[0, :3, 0].tolist() == [0, 3, 4]
    assert moved[1, :3, 0].tolist() == [5, 6, 7]
    assert lengths.tolist() == [[True] * 3 + [False] * 2] * 2 + [[False] * 5]

"""Random weights by which a tiny text model writes sentences that end."""

import math

import torch

PRINTABLE = slice(32, 127)
SENTENCE_ENDS = [ord(character) for character in ".!?"]
# How readily an answer ends: its length falls quickly as these grow.
END_OF_TEXT_SCALE = 1.2
LINE_BREAK_SCALE = 0.6


def let_sentences_end(
    head: torch.Tensor,
    embedding: torch.Tensor,
    end: int,
    end_scale: float = END_OF_TEXT_SCALE,
    line_break_scale: float = LINE_BREAK_SCALE,
) -> None:
    """Let only printable ASCII follow, and the end of the turn after a full stop or its like."""
    embedding[SENTENCE_ENDS] = embedding[SENTENCE_ENDS[0]] + 0.4 * embedding[SENTENCE_ENDS]
    printable = head[PRINTABLE].clone()
    head.zero_()
    head[PRINTABLE] = printable
    others = embedding[PRINTABLE].mean(dim=0)
    towards = embedding[SENTENCE_ENDS].mean(dim=0) - others
    head[end] = end_scale * with_norm_of_noise(towards)
    # An answer follows a line break, and should be neither empty nor a full stop alone.
    line_break = with_norm_of_noise(embedding[ord("\n")])
    head[[*SENTENCE_ENDS, end]] -= line_break_scale * line_break


def with_norm_of_noise(vector: torch.Tensor) -> torch.Tensor:
    """The vector, as long as one of standard normal noise."""
    return vector * (math.sqrt(vector.numel()) / vector.norm())


def scale(layer: torch.nn.Module, factor: float) -> None:
    """Multiply every parameter of a layer."""
    for parameter in layer.parameters():
        parameter.mul_(factor)

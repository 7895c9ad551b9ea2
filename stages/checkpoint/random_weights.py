"""Random weights by which a tiny model writes sentences that end, and speaks."""

import math
from collections.abc import Callable

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
    made: torch.Tensor = vector * (math.sqrt(vector.numel()) / vector.norm())
    return made


def scale(layer: torch.nn.Module, factor: float) -> None:
    """Multiply every parameter of a layer."""
    for parameter in layer.parameters():
        parameter.mul_(factor)


def fill_speaking_model(
    model: torch.nn.Module,
    vocoder: str,
    seed: int,
    weight_scale: Callable[[str, torch.Tensor], float],
) -> None:
    """Give every parameter of a speaking model its value for a seed; `vocoder`: the part's name.

    `weight_scale` returns the standard deviation of a weight outside of the vocoder. Norms are near
    1 and biases near 0; the vocoder's other vectors stay as they were made.
    """
    generator = torch.Generator().manual_seed(seed)
    # Its own, so that a change to the text models leaves the voice as it is.
    vocoder_generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_vocoder = name.startswith(f"{vocoder}.")
        source = vocoder_generator if is_vocoder else generator
        noise = torch.randn(parameter.shape, generator=source)
        if parameter.dim() > 1 and is_vocoder:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
        elif parameter.dim() > 1:
            parameter.copy_(weight_scale(name, parameter) * noise)
        elif name.endswith("weight") and ("norm" in name or "ln_" in name):
            parameter.copy_(1 + 0.1 * noise)
        elif name.endswith("bias"):
            parameter.copy_(0.1 * noise)

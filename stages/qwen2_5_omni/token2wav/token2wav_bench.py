"""`omnistage bench token2wav`: how far streamed speech is from the whole answer's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.console import Console
from rich.table import Table

from omnistage.stages.device.devices import device_of
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.token2wav.token2wav import Token2Wav
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_options import Token2WavOptions
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_weights import (
    load_speakers,
    load_token2wav,
    num_embeddings,
)
from omnistage.stages.vocoder.decoder import SAMPLE_MAX, StreamPiece

Codes = npt.NDArray[np.int32]
AHEAD = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class StreamError:
    """The error of a stream's samples against the whole answer's: relative RMS, and the largest."""

    ahead: int
    relative: float
    peak: float


def measure(
    model: str, codes: Codes, request: Request, ahead: Sequence[int] = AHEAD
) -> Iterator[StreamError]:
    """In float32, with the stage's own chunks."""
    device = device_of(None)
    weights = load_token2wav(model, device, torch.float32)
    speakers = load_speakers(model)

    def samples(options: Token2WavOptions) -> torch.Tensor:
        return _speak(Token2Wav(weights, speakers, options.schedule, 1), codes, request)

    whole = samples(Token2WavOptions(chunk="whole"))
    for blocks in ahead:
        difference = samples(Token2WavOptions(ahead=blocks)) - whole
        relative = difference.pow(2).mean().sqrt() / whole.pow(2).mean().sqrt()
        yield StreamError(blocks, float(relative), float(difference.abs().max()))


def token2wav(
    model: Annotated[str, typer.Argument(help="A model folder, with its weights.")],
    codes: Annotated[
        Path | None,
        typer.Option(help="A .npy file of codes, as return_codes gives them. Default: random."),
    ] = None,
    num_codes: Annotated[int, typer.Option(min=1, help="How many random codes.")] = 500,
    voice: Annotated[str | None, typer.Option(help="Who speaks. Default: the first.")] = None,
    seed: Annotated[int, typer.Option(help="Of the noise, and of random codes.")] = 0,
) -> None:
    """Tell how far streamed speech is from the whole answer's, by the blocks that it sees ahead."""
    spoken = _read(codes) if codes is not None else _random(num_codes, seed, model)
    title = f"{len(spoken)} codes against chunk: whole"
    table = Table("ahead", "relative error", "largest, of 16 bits", title=title)
    for error in measure(model, spoken, Request(None, [], speaker=voice, seed=seed)):
        steps = f"{error.peak * SAMPLE_MAX:.1f}"
        table.add_row(str(error.ahead), f"{error.relative:.1e}", steps)
    Console().print(table)


def _read(file: Path) -> Codes:
    codes: Codes = np.load(file).astype(np.int32).reshape(-1, 1)
    return codes


def _random(num_codes: int, seed: int, model: str) -> Codes:
    random = np.random.default_rng(seed)
    return random.integers(0, num_embeddings(model), (num_codes, 1), np.int32)


def _speak(decoder: Token2Wav, codes: Codes, request: Request) -> torch.Tensor:
    """All samples of an answer, on the host."""
    decoder.check(codes)
    piece, sounds = StreamPiece(decoder.open(request), codes, is_last=True), []
    is_unfinished = True
    while is_unfinished:
        pcm, (heard,), unfinished = decoder.decode([piece])
        decoder.advance(piece)
        sounds.append(pcm[0, heard].cpu())
        is_unfinished = bool(unfinished)
    return torch.cat(sounds)

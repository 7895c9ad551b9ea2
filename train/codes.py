"""Codes without a neural encoder: log-mel of 80 ms, principal components, residual k-means."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchaudio
from language.samples import Writer
from loop import Run, arguments
from sizes import CODEBOOK_SIZE, NUM_CODEBOOKS
from utterances import codes_path, flattened, load_utterances, load_waves
from voices import FLITE_RATE_HZ

BANDS, STEPS = 80, 8
COMPONENTS = 160
ITERATIONS = 20
SAMPLE = 200_000
# The codebooks of the embedded model, float16: its talker and its code2wav are bound to them.
KEPT = Path(__file__).with_name("codebooks.pt")


@cache
def mel_transform(device: torch.device) -> torchaudio.transforms.MelSpectrogram:
    """Made once."""
    return torchaudio.transforms.MelSpectrogram(
        FLITE_RATE_HZ,
        n_fft=512,
        win_length=400,
        hop_length=160,
        n_mels=BANDS,
        center=True,
        power=1.0,
    ).to(device)


def log_mel(wave: torch.Tensor) -> torch.Tensor:
    """[t, 640] from a wave float32 [t * 1280] at 16 kHz in -1 ... 1."""
    transform = mel_transform(wave.device)
    shifted = torch.nn.functional.pad(wave, (0, 160))[80:]
    mel = transform(shifted)[:, : len(wave) // 160]
    rows: torch.Tensor = (mel + 3e-2).log().T.reshape(-1, BANDS * STEPS)
    return rows


def kmeans(points: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """Centres [size, d] by Lloyd's iterations; an empty cluster starts again at a random point."""
    centres = points[
        torch.randperm(len(points), generator=generator)[:size].to(points.device)
    ].clone()
    for _ in range(ITERATIONS):
        nearest = assign(points, centres)
        counts = torch.bincount(nearest, minlength=size)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = sums / counts.clamp(min=1)[:, None]
        empty = (counts < 2).nonzero()[:, 0]
        if len(empty):
            fresh = torch.randperm(len(points), generator=generator)[: len(empty)].to(points.device)
            centres[empty] = points[fresh]
    return centres


def assign(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The nearest centre of each point, int64 [n]."""
    parts = points.split(65_536)
    return torch.cat([torch.cdist(part, centres).argmin(1) for part in parts])


def fit(points: torch.Tensor) -> dict[str, Any]:
    """Fit principal components, and codebooks of what those before leave, to log-mel [n, 640]."""
    mean = points.mean(0)
    points = points - mean
    covariance = points.T @ points / len(points)
    basis = torch.linalg.eigh(covariance)[1][:, -COMPONENTS:].flip(1)
    rest = points @ basis
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(rest), generator=generator)[:SAMPLE].to(rest.device)
    books = []
    for _ in range(NUM_CODEBOOKS):
        centres = kmeans(rest[chosen], CODEBOOK_SIZE, generator)
        rest = rest - centres[assign(rest, centres)]
        books.append(centres)
    return {"books": books, "basis": basis, "mean": mean}


def encode(points: torch.Tensor, fitted: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int16 [n, codebooks] of log-mel [n, 640]; the square sum before and after each."""
    points = points - fitted["mean"].float()
    rest = points @ fitted["basis"].float()
    total = points.square().sum()
    lost = total - rest.square().sum()
    codes, left = [], [total]
    for book in fitted["books"]:
        nearest = assign(rest, book.float())
        rest = rest - book.float()[nearest]
        codes.append(nearest.to(torch.int16).cpu())
        left.append(lost + rest.square().sum())
    return torch.stack(codes, 1), torch.stack(left)


def mels(run: Run) -> Iterator[torch.Tensor]:
    """Log-mel [n, 640] of all sounds, part after part."""
    for part in load_waves(run.data):
        yield log_mel(torch.from_numpy(part).to(run.device).float() / 32768)


def main() -> None:
    """Write each utterance's text and codes int16 [t, codebooks]."""
    run = arguments(1)
    if KEPT.exists():
        fitted = torch.load(KEPT, map_location=run.device, weights_only=True)
    else:
        fitted = fit(torch.cat(list(mels(run))))
    codes, left = zip(*(encode(points, fitted) for points in mels(run)), strict=True)
    sums = torch.stack(left).double().sum(0).tolist()
    for number, rest in enumerate(sums[1:]):
        print(f"codebook {number}: {rest / sums[0]:.4f} of the variance left", flush=True)
    made = flattened(load_utterances(run.data), Writer())
    made["codes"] = torch.cat(codes)
    assert len(made["codes"]) == int(made["frames"][-1])
    kept = {"books": [book.half().cpu() for book in fitted["books"]]}
    kept |= {name: fitted[name].half().cpu() for name in ("basis", "mean")}
    path = codes_path(run.out, run.data)
    torch.save({**made, **kept}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()

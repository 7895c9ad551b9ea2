"""Codes without a neural encoder: log-mel of 80 ms, principal components, residual k-means."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchaudio
from loop import arguments
from sizes import CODEBOOK_SIZE, NUM_CODEBOOKS
from utterances import load_utterances, load_waves
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


def main() -> None:
    """Write codes.pt: of each utterance its codes int16 [t, codebooks]."""
    run = arguments(1)
    lengths = [one.frames for one in load_utterances(run.data)]
    parts = []
    for part in load_waves(run.data):
        parts.append(log_mel(torch.from_numpy(part).to(run.device).float() / 32768))
    points = torch.cat(parts)
    assert len(points) == sum(lengths)
    if KEPT.exists():
        fitted = torch.load(KEPT, map_location=run.device, weights_only=True)
    else:
        fitted = fit(points)
    books = [book.float() for book in fitted["books"]]
    points = points - fitted["mean"].float()
    total = float((points * points).sum(1).mean())
    rest = points @ fitted["basis"].float()
    lost = total - float((rest * rest).sum(1).mean())
    codes = []
    for number, book in enumerate(books):
        nearest = assign(rest, book)
        rest = rest - book[nearest]
        codes.append(nearest.to(torch.int16).cpu())
        left = (lost + float((rest * rest).sum(1).mean())) / total
        print(f"codebook {number}: {left:.4f} of the variance left", flush=True)
    kept = {"books": [book.half().cpu() for book in books]}
    kept |= {name: fitted[name].half().cpu() for name in ("basis", "mean")}
    torch.save({"codes": torch.stack(codes, 1), **kept}, run.out / "codes.pt")


if __name__ == "__main__":
    main()

"""Codes without a neural encoder: log-mel of 80 ms, principal components, residual k-means."""

import pickle

import numpy as np
import torch
import torchaudio
from loop import arguments
from sizes import CODEBOOK_SIZE, NUM_CODEBOOKS
from voices import FLITE_RATE_HZ

FRAME_16K = 1280
BANDS, STEPS = 80, 8
COMPONENTS = 160
ITERATIONS = 20
SAMPLE = 200_000


def log_mel(wave: torch.Tensor) -> torch.Tensor:
    """[t, 640] from a wave float32 [t * 1280] at 16 kHz in -1 ... 1."""
    transform = torchaudio.transforms.MelSpectrogram(
        FLITE_RATE_HZ,
        n_fft=512,
        win_length=400,
        hop_length=160,
        n_mels=BANDS,
        center=True,
        power=1.0,
    ).to(wave.device)
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


def main() -> None:
    """Read voices.pkl, write codes.pt: of each text its codes int16 [t, codebooks]."""
    run = arguments(1)
    with (run.data / "voices.pkl").open("rb") as file:
        voices = pickle.load(file)
    features, lengths = [], []
    for _, _, samples in voices:
        wave = torch.from_numpy(samples.astype(np.float32) / 32768).to(run.device)
        wave = torch.nn.functional.pad(wave, (0, -len(wave) % FRAME_16K))
        features.append(log_mel(wave))
        lengths.append(len(features[-1]))
    points = torch.cat(features)
    mean = points.mean(0)
    points = points - mean
    covariance = points.T @ points / len(points)
    values, vectors = torch.linalg.eigh(covariance)
    basis = vectors[:, -COMPONENTS:].flip(1)
    total = values.sum()
    rest = points @ basis
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(rest), generator=generator)[:SAMPLE].to(rest.device)
    codes, books = [], []
    for book in range(NUM_CODEBOOKS):
        centres = kmeans(rest[chosen], CODEBOOK_SIZE, generator)
        nearest = assign(rest, centres)
        rest = rest - centres[nearest]
        codes.append(nearest.to(torch.int16).cpu())
        books.append(centres.cpu())
        left = float((rest * rest).sum(1).mean() / total)
        print(f"codebook {book}: {left:.4f} of the variance left", flush=True)
    rows = torch.stack(codes, 1).split(lengths)
    torch.save(
        {"codes": list(rows), "books": books, "basis": basis.cpu(), "mean": mean.cpu()},
        run.out / "codes.pt",
    )


if __name__ == "__main__":
    main()

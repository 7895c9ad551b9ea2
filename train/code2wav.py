"""Trains code2wav: codes to waves, by spectra at many resolutions, then against critics."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import torchaudio
from language.tokens import make_tokenizer
from loop import Training, adam, arguments
from sizes import FRAME, NUM_CODEBOOKS, small_config
from torch import nn
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling
from utterances import codes_path, load_waves
from voices import FLITE_RATE_HZ

RATE_HZ = 24_000
BATCH, FRAMES, WARM_FRAMES = 32, 20, 4
PARTS = 16  # of 64, enough for a voice; the others are for the talker
CRITICS_FROM = 0.35  # of the training
RESOLUTIONS = (128, 256, 512, 1024, 2048)


def spectrum(wave: torch.Tensor, size: int) -> torch.Tensor:
    """Magnitudes [b, bins, frames]."""
    window = torch.hann_window(size, device=wave.device)
    return torch.stft(wave, size, size // 4, window=window, return_complex=True).abs()


def spectral_loss(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Of magnitudes and of their logarithms, at all resolutions."""
    total = made.new_zeros(())
    for size in RESOLUTIONS:
        ours, theirs = spectrum(made, size), spectrum(real, size)
        scale = size**0.5
        total = total + 8 * (ours - theirs).abs().mean() / scale
        total = total + ((ours + 1e-2).log() - (theirs + 1e-2).log()).abs().mean()
    return total / len(RESOLUTIONS)


class Critic(nn.Module):
    """Judges the plane of a wave: its spectrum, or its samples folded by a period."""

    def __init__(self, size: int = 0, period: int = 0) -> None:
        super().__init__()
        self._size, self._period = size, period
        widths = (2 if size else 1, 32, 64, 128, 128)
        kernel, stride = ((3, 9), (1, 2)) if size else ((5, 1), (3, 1))
        padding = (1, 4) if size else (2, 0)
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(one, two, kernel, stride, padding))
            for one, two in pairwise(widths)
        )
        self.last = nn.utils.parametrizations.weight_norm(
            nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0))
        )

    def forward(self, wave: torch.Tensor) -> list[torch.Tensor]:
        """The planes of all layers, the last one the verdict."""
        if self._size:
            window = torch.hann_window(self._size, device=wave.device)
            plane = torch.stft(
                wave, self._size, self._size // 4, window=window, return_complex=True
            )
            x = torch.stack([plane.real, plane.imag], 1).transpose(2, 3) / self._size**0.5
        else:
            wave = wave[:, : wave.shape[1] // self._period * self._period]
            x = wave.reshape(len(wave), 1, -1, self._period)
        planes = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            planes.append(x)
        return [*planes, self.last(x)]


def critics() -> nn.ModuleList:
    """Three of spectra, four of periods."""
    return nn.ModuleList(
        [
            *(Critic(size=size) for size in (256, 512, 1024)),
            *(Critic(period=one) for one in (2, 3, 5, 7)),
        ]
    )


class Pieces:
    """Random pieces of all utterances: codes int64 [b, codebooks, t] and waves [b, t * 1920]."""

    def __init__(self, run: Any) -> None:
        codes = torch.load(codes_path(run.out, run.data), weights_only=True)["codes"]
        resample = torchaudio.transforms.Resample(FLITE_RATE_HZ, RATE_HZ).to(run.device)
        waves = []
        for part in load_waves(run.data)[:PARTS]:
            wave = torch.from_numpy(part).to(run.device).float() / 32768
            waves.append(resample(wave).half())
        self._waves = torch.cat(waves).reshape(-1, FRAME)
        self._codes = codes[: len(self._waves)].to(run.device)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of them."""
        device = self._codes.device
        # Now and then a piece has the end of an utterance and the next one's beginning.
        chosen = torch.randint(len(self._codes) - FRAMES, (count,), device=device)
        index = chosen[:, None] + torch.arange(FRAMES, device=device)
        return self._codes[index].long().transpose(1, 2), self._waves[index].flatten(1).float()


def main() -> None:
    """Train, and write code2wav.pt."""
    run = arguments(20_000)
    torch.manual_seed(2)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    config = small_config(make_tokenizer()).code2wav_config
    net = modeling.Qwen3OmniMoeCode2Wav._from_config(config)
    run.begin(net, "code2wav")
    net.to(run.device)
    judges = critics().to(run.device)
    optimizer, other = adam(net, 1e-3, 0.0), adam(judges, 4e-4, 0.0)
    parts = {"net": net, "judges": judges, "optimizer": optimizer, "other": other}
    training = Training(run, "code2wav", parts, [(optimizer, 1e-3), (other, 4e-4)])
    pieces = Pieces(run)
    for _ in training.steps():
        codes, real = pieces.draw(run.size(BATCH))
        noise = torch.randint_like(codes, config.codebook_size)
        odd = (
            torch.rand(codes.shape, device=codes.device)
            < 0.02 * torch.linspace(0, 1, NUM_CODEBOOKS, device=codes.device)[:, None]
        )
        made = net(torch.where(odd, noise, codes))[:, 0]
        # The first frames lack what would be before them.
        ours = made[:, WARM_FRAMES * FRAME :]
        real = real[:, WARM_FRAMES * FRAME : made.shape[1]]
        near = spectral_loss(ours, real)
        loss = near
        log = {"near": near}
        if training.progress >= CRITICS_FROM:
            start = int(torch.randint(0, real.shape[1] - 12_000, ()))
            fake, true = ours[:, start : start + 12_000], real[:, start : start + 12_000]
            with run.autocast():
                verdicts = [(judge(true), judge(fake.detach())) for judge in judges]
                judged = sum(
                    ((1 - good[-1].float()) ** 2).mean() + (bad[-1].float() ** 2).mean()
                    for good, bad in verdicts
                )
            other.zero_grad(set_to_none=True)
            judged.backward()
            other.step()
            with run.autocast():
                fooled, alike = made.new_zeros(()), made.new_zeros(())
                for judge, (good, _) in zip(judges, verdicts, strict=True):
                    planes = judge(fake)
                    fooled = fooled + ((1 - planes[-1].float()) ** 2).mean()
                    for ours_plane, real_plane in zip(planes[:-1], good[:-1], strict=True):
                        alike = alike + F.l1_loss(ours_plane.float(), real_plane.detach().float())
            loss = 6 * near + (fooled + alike) / 4
            log |= {"judged": judged, "fooled": fooled, "alike": alike}
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        training.log(**log)


if __name__ == "__main__":
    main()

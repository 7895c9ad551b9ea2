"""What every training shares: its clock, its optimizer's rate, its state on disk, its log."""

import argparse
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

SAVE_EVERY_S = 40.0
LOG_EVERY = 100
MORE_RATE = 0.6  # of the peak, when a finished training goes on


@dataclass(frozen=True)
class Run:
    """Where a training reads and writes, and how long it lasts."""

    data: Path
    out: Path
    steps: int
    minutes: float
    device: torch.device
    batch: float = 1.0
    workers: int = 4
    more: bool = False
    checkpoint: Path | None = None
    rank: int = 0  # of the processes that train one part together: torch.distributed.run
    ranks: int = 1

    def average(self, module: torch.nn.Module) -> None:
        """Give a module's gradients their mean over all ranks."""
        if self.ranks == 1:
            return
        grads = [one.grad for one in module.parameters() if one.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        torch.distributed.all_reduce(flat)
        flat /= self.ranks
        parts = flat.split([grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))

    def share(self, module: torch.nn.Module) -> None:
        """Give a module the weights that the first rank has."""
        if self.ranks > 1:
            for one in module.state_dict().values():
                torch.distributed.broadcast(one, 0)

    def of_first(self, value: float) -> float:
        """The value that the first rank has."""
        if self.ranks == 1:
            return value
        sent = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.broadcast(sent, 0)
        return float(sent)

    def begin(self, module: torch.nn.Module, name: str) -> None:
        """Give a part its weights in the checkpoint that is trained on, if there is one."""
        if self.checkpoint is not None:
            begin(module, name, self.checkpoint)

    def autocast(self) -> torch.autocast:
        """bfloat16 where it is fast."""
        return torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda")

    def size(self, full: int) -> int:
        """A batch's size, as a share of the full one."""
        return max(2, int(full * self.batch))


def begin(module: torch.nn.Module, name: str, checkpoint: Path) -> None:
    """Give a part its weights in a checkpoint; raises RuntimeError if they do not fit."""
    model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32
    )
    module.load_state_dict(getattr(model, name).state_dict())


def arguments(steps: int) -> Run:
    """From the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path(".cache/small/data"))
    parser.add_argument("--out", type=Path, default=Path(".cache/small/out"))
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--minutes", type=float, default=1e9, help="end earlier, at a low rate")
    parser.add_argument("--batch", type=float, default=1.0, help="a share of the full batch")
    parser.add_argument("--workers", type=int, default=4, help="processes that make batches")
    parser.add_argument("--more", action="store_true", help="train a finished one on")
    parser.add_argument("--checkpoint", type=Path, help="a folder whose weights are trained on")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        if device.type == "cuda":
            torch.cuda.set_device(rank)
            device = torch.device("cuda", rank)
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Run(
        given.data,
        given.out,
        given.steps,
        given.minutes,
        device,
        given.batch,
        given.workers,
        given.more,
        given.checkpoint,
        rank,
        ranks,
    )


@dataclass
class Training:
    """Counts steps, sets rates, saves and resumes the named modules and optimizers."""

    run: Run
    name: str
    parts: dict[str, Any]
    rates: list[tuple[torch.optim.Optimizer, float]]
    step: int = 0
    spent: float = 0.0
    _sums: dict[str, torch.Tensor] = field(default_factory=dict)
    _count: int = 0

    @property
    def path(self) -> Path:
        """The state's file."""
        return self.run.out / f"{self.name}.pt"

    @property
    def progress(self) -> float:
        """From 0 to 1, by steps or by time, whichever is further."""
        return max(self.step / self.run.steps, self.spent / (self.run.minutes * 60))

    def rate(self, peak: float) -> float:
        """The present rate, of a peak."""
        return peak * _share(self.progress) * (MORE_RATE if self.run.more else 1)

    def steps(self) -> Iterator[int]:
        """Yields until the end; saves now and then, and at the end."""
        self._resume()
        started = last_saved = time.monotonic()
        before = self.spent
        while self.progress < 1:
            for optimizer, peak in self.rates:
                for group in optimizer.param_groups:
                    group["lr"] = self.rate(peak)
            yield self.step
            self.step += 1
            now = time.monotonic()
            self.spent = self.run.of_first(before + now - started)
            if now - last_saved > SAVE_EVERY_S:
                self.save()
                last_saved = now
        self.save()

    def log(self, **losses: torch.Tensor) -> None:
        """Adds a step's losses; prints their means now and then."""
        for name, loss in losses.items():
            self._sums[name] = (
                self._sums.get(name, torch.zeros(())) + loss.detach().cpu().float()
                if self.run.device.type == "cpu"
                else self._sums.get(name, torch.zeros((), device=loss.device))
                + loss.detach().float()
            )
        self._count += 1
        if self._count == LOG_EVERY and self.run.rank == 0:
            means = " ".join(
                f"{name} {float(total) / LOG_EVERY:.3f}" for name, total in self._sums.items()
            )
            print(f"{self.name} {self.step} {self.spent:.0f} s: {means}", flush=True)
            self._sums.clear()
            self._count = 0

    def save(self) -> None:
        """Writes the state, whole or not at all; the first rank does."""
        if self.run.rank:
            return
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state["at"] = {"step": self.step, "spent": self.spent, "more": self.run.more}
        new = self.path.with_suffix(".new")
        torch.save(state, new)
        new.replace(self.path)

    def resumed_at(self) -> int:
        """The step of the state on disk, 0 without one."""
        if not self.path.exists():
            return 0
        return int(torch.load(self.path, mmap=True, weights_only=True)["at"]["step"])

    def _resume(self) -> None:
        if not self.path.exists():
            return
        state = torch.load(self.path, map_location=self.run.device, weights_only=True)
        again = self.run.more and not state["at"].get("more", False)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        if not again:
            self.step, self.spent = state["at"]["step"], state["at"]["spent"]


def _share(progress: float, warm: float = 0.02) -> float:
    """Of the peak rate: up in a line, down by a cosine."""
    return min(1.0, (progress + 1e-4) / warm) * (
        0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))
    )


def adam(module: torch.nn.Module, peak: float, decay: float = 0.03) -> torch.optim.Optimizer:
    """AdamW over what is trained of a module; norms and biases do not decay."""
    trained = [one for one in module.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": decay},
        {"params": [one for one in trained if one.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=torch.cuda.is_available())


def dense_experts(
    experts: Any, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """All experts for all rows, weighted: few experts need no loop over them.

    Takes the place of the forward of transformers' experts in training; the same sums.
    """
    gate_up = torch.einsum("nh,eih->eni", hidden, experts.gate_up_proj)
    gate, up = gate_up.chunk(2, dim=-1)
    made = torch.einsum("eni,ehi->enh", experts.act_fn(gate) * up, experts.down_proj)
    share = torch.zeros(len(hidden), experts.num_experts, device=hidden.device, dtype=weights.dtype)
    share = share.scatter(1, index, weights)
    return (made * share.T[..., None].to(made.dtype)).sum(0)

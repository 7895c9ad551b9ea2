"""A training's steps: on a GPU each is recorded once as a CUDA graph and replayed.

A step here is thousands of small kernels, which a CPU starts more slowly than a GPU ends them.
"""

import os
import sys
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch
from torch import nn

EAGER = "SMALL_IMAGE_EAGER"
WARM = 3  # steps of a kind before it is recorded
CHECKED = 1000  # steps after which a loss has to be below its bound


class Steps:
    """Losses of a kind of step, each of them a step of the optimizer.

    `compute` gives the losses of a kind; the one named `loss` is learned. Everything in it has to
    be on the device, with shapes that only the kind decides.
    """

    def __init__(
        self,
        module: nn.Module,
        rate: float,
        decay: float,
        compute: Callable[[Any], dict[str, torch.Tensor]],
    ) -> None:
        self._compute = compute
        self._trained = [one for one in module.parameters() if one.requires_grad]
        device = self._trained[0].device
        self._on_gpu = device.type == "cuda"
        self._records = self._on_gpu and EAGER not in os.environ
        self._rate = torch.tensor(rate, device=device)
        groups = [
            {"params": [one for one in self._trained if one.dim() > 1], "weight_decay": decay},
            {"params": [one for one in self._trained if one.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=self._rate if self._on_gpu else rate,
            betas=(0.9, 0.98),
            fused=self._on_gpu,
            capturable=self._on_gpu,
        )
        self._calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, tuple[Any, dict[str, torch.Tensor]]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._records else None
        self._sum = torch.zeros((), device=device)
        self._count = 0

    def __call__(self, kind: Hashable, rate: float) -> dict[str, torch.Tensor]:
        """Take a step; the losses are on the device, and hold until the next one."""
        if self._on_gpu:
            self._rate.fill_(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate if self._on_gpu else rate
        calls = self._calls[kind] = self._calls.get(kind, 0) + 1
        if not self._records:
            losses = self._step(kind)
        elif calls <= WARM:
            losses = self._beside(kind)
        else:
            if kind not in self._graphs:
                self._record(kind)
            graph, losses = self._graphs[kind]
            graph.replay()
        self._sum += losses["loss"]
        self._count += 1
        return losses

    def check(self, bound: float, state: Path) -> None:
        """Begin anew, without graphs and saved state, if CHECKED steps have learned nothing."""
        if not self._records or self._count % CHECKED:
            return
        mean = float(self._sum) / CHECKED
        self._sum.zero_()
        if not mean < bound:
            state.unlink(missing_ok=True)
            begin_without_graphs(f"the mean loss of {CHECKED} steps is {mean:.3f}")

    def _step(self, kind: Hashable) -> dict[str, torch.Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        losses = self._compute(kind)
        losses["loss"].backward()
        norm = nn.utils.clip_grad_norm_(self._trained, 1.0)
        if self._on_gpu:  # a step that is not finite is left out, without a wait
            skip: Any = self.optimizer
            skip.found_inf = (~norm.isfinite()).float()
        self.optimizer.step()
        return {name: one.detach() for name, one in losses.items()} | {"norm": norm}

    def _beside(self, kind: Hashable) -> dict[str, torch.Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            losses = self._step(kind)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        return losses

    def _record(self, kind: Hashable) -> None:
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                losses = self._step(kind)
        except RuntimeError as error:
            begin_without_graphs(repr(error))
        self._graphs[kind] = graph, losses


def begin_without_graphs(reason: str) -> None:
    """Start the program again, from its last save."""
    print(f"without CUDA graphs: {reason}", flush=True)
    os.environ[EAGER] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])

"""`make gpu-experts`: the thinker's layers beside the code predictor's frames, under MPS.

One process runs steps of the thinker without a pause: 48 layers of norms, projections, router and
experts in one CUDA graph, of which 16 have weights of their own; no attention over a KV cache. The
other runs frames of the code predictor. For each number of rows, with vLLM's kernels for experts
and with ours: the outputs of a layer compared, the step alone, and both beside each other.
`--tiny` runs it on a CPU, with torch in vLLM's place and our kernels in Triton's interpreter.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from gpu_loads import STEP, Plan, Talker
from support.printing import numbers, say
from torch.nn import functional

from omnistage.server.runtime.mps_daemon import Mps, mps_daemon
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.device.recording import record
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

VLLM, OURS, PLAIN = "vLLM's", "ours", "plain"
NUM_LAYERS, NUM_OWN, NUM_PICKS = 48, 16, 8
MOST_ERROR, PATIENCE_S, AT_ONCE = 1e-3, 120.0, 2
Pair = tuple[torch.Tensor, torch.Tensor]


class Layer:
    """One of the thinker's, with random weights; in float8 experts have a scale for each output."""

    def __init__(self, device: str, dtype: torch.dtype, is_float8: bool, is_tiny: bool) -> None:
        num_experts, size, inner, attended = (
            (8, 128, 128, 256) if is_tiny else (128, 2048, 768, 4096)
        )

        def drawn(*shape: int) -> torch.Tensor:
            return torch.empty(shape, device=device, dtype=dtype).uniform_(-0.035, 0.035)

        self.qkv, self.out = drawn(attended * 5 // 4, size), drawn(size, attended)
        self.router = drawn(num_experts, size)
        self.first, self.second = (
            drawn(num_experts, 2 * inner, size),
            drawn(num_experts, size, inner),
        )
        self.scales: Pair | None = None
        if is_float8:
            self.first, first = in_float8(self.first)
            self.second, second = in_float8(self.second)
            self.scales = first, second

    def hidden(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns what the experts take of states [n, size], and which of them, with what
        weights.
        """
        projected = functional.linear(_normal(states), self.qkv)[:, : self.out.shape[1]]
        normal = _normal(states + functional.linear(projected, self.out))
        logits = functional.linear(normal, self.router).float()
        weights, chosen = logits.softmax(-1).topk(min(NUM_PICKS, len(self.router) // 2))
        return normal, weights / weights.sum(-1, keepdim=True), chosen.to(torch.int32)


def in_float8(weight: torch.Tensor) -> Pair:
    """A weight [experts, n, k], and the scale of each output [experts, n, 1]."""
    scale = weight.abs().amax(-1, keepdim=True).float() / 448
    return (weight.float() / scale).to(torch.float8_e4m3fn), scale


def _normal(states: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(states, states.shape[-1:])


def vllm_experts(layer: Layer, rows: torch.Tensor, weights: Any, chosen: Any) -> torch.Tensor:
    """By its Triton kernels."""
    from vllm.model_executor.layers.fused_moe import fused_experts
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    more = {}
    if layer.scales is not None:
        first, second = layer.scales
        more["quant_config"] = fp8_w8a8_moe_quant_config(
            w1_scale=first, w2_scale=second, per_act_token_quant=True, per_out_ch_quant=True
        )
    output: torch.Tensor = fused_experts(rows, layer.first, layer.second, weights, chosen, **more)
    return output


def our_experts(layer: Layer, rows: torch.Tensor, weights: Any, chosen: Any) -> torch.Tensor:
    """By stages/vllm/models/experts_kernel.py, as SharingExperts calls it."""
    from omnistage.stages.vllm.models.experts_kernel import assign, multiply

    def scaled(values: torch.Tensor, number: int) -> tuple[torch.Tensor, Pair | None]:
        if layer.scales is None:
            return values, None
        from vllm import _custom_ops as ops

        quantized, scale = ops.scaled_fp8_quant(values, use_per_token_if_dynamic=True)
        return quantized, (scale, layer.scales[number])

    count = chosen.numel()
    num_processors = (
        torch.cuda.get_device_properties(rows.device).multi_processor_count if rows.is_cuda else 2
    )
    assigned = assign(chosen, len(layer.first))
    inner = rows.new_empty(count, layer.second.shape[2])
    picked = rows.new_empty(count, rows.shape[1])
    given, scales = scaled(rows, 0)
    multiply(given, layer.first, inner, assigned, num_processors, scales=scales)
    given, scales = scaled(inner, 1)
    multiply(
        given, layer.second, picked, assigned, num_processors, pick_weights=weights, scales=scales
    )
    return picked.view(len(rows), -1, rows.shape[1]).sum(1)


def plain_experts(layer: Layer, rows: torch.Tensor, weights: Any, chosen: Any) -> torch.Tensor:
    """By torch, pick after pick."""
    output = torch.zeros_like(rows)
    for row, pick in chosen.new_ones(chosen.shape).nonzero().tolist():
        expert = chosen[row, pick]
        gate, up = (layer.first[expert] @ rows[row]).chunk(2)
        gated = layer.second[expert] @ (functional.silu(gate) * up)
        output[row] += weights[row, pick] * gated
    return output


EXPERTS = {VLLM: vllm_experts, OURS: our_experts, PLAIN: plain_experts}


class Steps:
    """The steps of the thinker."""

    def __init__(self, plan: Plan, is_float8: bool) -> None:
        if plan.device == "cuda":
            from vllm.config import VllmConfig, set_current_vllm_config

            set_current_vllm_config(VllmConfig()).__enter__()  # for as long as the process lives
        self._device, self._dtype = plan.device, getattr(torch, plan.dtype)
        is_tiny = plan.device == "cpu"
        torch.manual_seed(0)
        make = (plan.device, self._dtype, is_float8, is_tiny)
        self._layers = [Layer(*make) for _ in range(1 if is_tiny else NUM_OWN)]
        self._rounds = 1 if is_tiny else NUM_LAYERS // NUM_OWN

    def prepare(self, num_rows: int, experts: str) -> torch.Tensor:
        """One graph of a step; returns what the first layer's experts give, on the host."""
        run = EXPERTS[experts]
        size = self._layers[0].router.shape[1]
        generator = torch.Generator(self._device).manual_seed(num_rows)
        shape = num_rows, size
        states = torch.randn(shape, generator=generator, device=self._device).to(self._dtype)

        def step() -> torch.Tensor:
            found = states
            for _ in range(self._rounds):
                for layer in self._layers:
                    found = found + run(layer, *layer.hidden(found))
            return found

        first = self._layers[0]
        output = run(first, *first.hidden(states)).float().cpu()
        self.do: Callable[[], Any] = step
        if self._device == "cuda":
            self.do = record(step, None)[0].replay
        return output


class Frames:
    """The frames of the code predictor, without the talker's layers."""

    def __init__(self, plan: Plan, is_float8: bool) -> None:
        self._load = Talker(plan)
        self._load._layers = torch.nn.Identity()  # type: ignore[assignment]
        self._is_gpu = plan.device == "cuda"

    def prepare(self, num_rows: int, experts: str) -> torch.Tensor:
        """One graph of a frame; returns its codes."""
        self._load.prepare(num_rows, torch.cuda.current_stream() if self._is_gpu else None)
        self.do: Callable[[], Any] = self._load._run
        return torch.from_numpy(self._load.do(STEP, 0))


KINDS: dict[str, Any] = {"steps": Steps, "frames": Frames}


def timed(do: Callable[[], Any], seconds: float, is_gpu: bool) -> float:
    """The median of what it takes, ms, with at most two of them waiting for the GPU."""
    until = time.perf_counter() + seconds
    if not is_gpu:
        took: list[float] = []
        while time.perf_counter() < until or not took:
            began = time.perf_counter()
            do()
            took.append(1e3 * (time.perf_counter() - began))
        return sorted(took)[len(took) // 2]
    events: list[torch.cuda.Event] = []
    while time.perf_counter() < until or len(events) < 2 * AT_ONCE:
        do()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > AT_ONCE:
            events[-AT_ONCE].synchronize()
    torch.cuda.synchronize()
    found: list[float] = [one.elapsed_time(other) for one, other in pairwise(events)]
    return sorted(found)[len(found) // 2]


def host(connection: Any, barrier: Any, kind: str, plan: Plan, is_float8: bool) -> None:
    """A process that does what it is told, until it is told None; it answers (result, problem)."""
    is_gpu = plan.device == "cuda"
    try:
        with torch.inference_mode():
            load = KINDS[kind](plan, is_float8)
            connection.send((None, None))
            while (task := connection.recv()) is not None:
                name, *rest = task
                if name == "prepare":
                    connection.send((load.prepare(*rest), None))
                    continue
                seconds, is_shared = rest
                load.do()
                if is_shared:
                    barrier.wait(PATIENCE_S)
                connection.send((timed(load.do, seconds, is_gpu), None))
    except Exception:  # noqa: BLE001 - whatever it is, the other process has to know
        barrier.abort()
        connection.send((None, traceback.format_exc()))


class Pairs:
    """Both processes."""

    def __init__(self, plan: Plan, is_float8: bool) -> None:
        context = get_context("spawn")
        barrier = context.Barrier(len(KINDS))
        self._connections: dict[str, Any] = {}
        for kind in KINDS:
            self._connections[kind], theirs = context.Pipe()
            arguments = (theirs, barrier, kind, plan, is_float8)
            context.Process(target=host, args=arguments, daemon=True).start()
        for kind in KINDS:
            self.answer(kind)

    def ask(self, kind: str, *task: Any) -> None:
        """Without waiting for the answer."""
        self._connections[kind].send(task)

    def answer(self, kind: str) -> Any:
        """Raises SystemExit with what went wrong."""
        if not self._connections[kind].poll(2 * PATIENCE_S):
            raise SystemExit(f"{kind}: no answer")
        result, problem = self._connections[kind].recv()
        if problem is not None:
            raise SystemExit(f"{kind}: {problem}")
        return result

    def close(self) -> None:
        """Let them end."""
        for connection in self._connections.values():
            connection.send(None)


def compare(pairs: Pairs, rows: list[int], seconds: float, ways: list[str]) -> bool:
    """Print a line for each number of rows and kernels; whether their outputs agree."""
    is_right = True
    say(
        f"{'rows':>5}  {'experts':8}{'step alone':>12}{'beside':>8}{'frame alone':>13}{'beside':>8}"
    )
    for num_rows in rows:
        pairs.ask("frames", "prepare", num_rows, "")
        pairs.answer("frames")
        pairs.ask("frames", "run", seconds, False)
        frame = pairs.answer("frames")
        outputs = {}
        for way in ways:
            pairs.ask("steps", "prepare", num_rows, way)
            outputs[way] = pairs.answer("steps")
            pairs.ask("steps", "run", seconds, False)
            step = pairs.answer("steps")
            for kind in KINDS:
                pairs.ask(kind, "run", seconds, True)
            step_beside, frame_beside = pairs.answer("steps"), pairs.answer("frames")
            reference = outputs[ways[0]]
            off = float((outputs[way] - reference).norm() / reference.norm())
            is_right &= off <= MOST_ERROR  # so is no NaN
            say(
                f"{num_rows:5}  {way:8}{step:12.2f}{step_beside:8.2f}{frame:13.2f}"
                f"{frame_beside:8.2f}  off by {off:.1e}{'' if off <= MOST_ERROR else ' WRONG'}"
            )
    return is_right


def main() -> None:
    """Write the model's folder, start MPS and both processes, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--rows", type=numbers, help="8,32,64; tiny 5")
    parser.add_argument("--float8", action="store_true", help="experts in float8")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    asked = parser.parse_args()
    if not asked.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU: --tiny runs on a CPU")
    if asked.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        model = folder / "model"
        if asked.tiny:
            write_tiny_checkpoint(model, 0)
        else:
            write_real_size_folder(model)
            graph = load_graph(GRAPHS / "qwen3_omni_1gpu.yaml", str(model))
            stack.enter_context(mps_daemon(Mps.ON, graph, folder))
        device, dtype = ("cpu", "float32") if asked.tiny else ("cuda", "bfloat16")
        pairs = Pairs(Plan(str(model), device, dtype, folder), asked.float8)
        stack.callback(pairs.close)
        rows = asked.rows or ([5] if asked.tiny else [8, 32, 64])
        ways = [PLAIN if asked.tiny else VLLM, OURS]
        is_right = compare(pairs, rows, asked.seconds, ways)
    say("right" if is_right else "WRONG")
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()

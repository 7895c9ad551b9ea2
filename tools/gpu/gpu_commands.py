"""`make gpu-commands`: sleep, wake and other weights of real engines on a GPU.

Two checkpoints of random weights are written for each model: a text model of 0.8 billion
parameters, and Qwen3-Omni's thinker at its real width with four layers. Its server answers a
question, sleeps at level 1 and 2, wakes by tag, takes the other checkpoint's weights and its own
again. Bytes and seconds are printed. Each answer must be the one from before, or the other
checkpoint's; otherwise the exit code is 1.

`--tiny` runs the same on a CPU, where vLLM has no sleep: then its refusal is what is checked.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
import yaml
from rich.console import Console
from support.models.tiny_text import write_tiny_text
from support.servers.server import ADMIN_KEY, TinyServer, running_server
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3OmniMoeForConditionalGeneration

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.checkpoint.files import generation_config, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import make_tokenizer
from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

NUM_TOKENS = 48
GAIN = 2.5  # so that an answer is not one token again and again
THINKER_LAYERS = 4  # three of them take what deepstack adds
TIMEOUT_S = 300.0
ENGINE = {
    "enable_sleep_mode": True,
    "enforce_eager": True,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 8,
    "gpu_memory_utilization": 0.5,
}
LENGTHS = {"vllm.text": 2048, "qwen3_omni.thinker": 32768}  # the second's images need as much

Write = Callable[[Path, int], None]


@dataclass
class Report:
    """The measurements and mistakes of one model."""

    name: str
    rows: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def check(self, is_right: bool, what: str) -> None:
        """Note what was checked."""
        self.rows.append(f"{'ok   ' if is_right else 'WRONG'} {what}")
        if not is_right:
            self.wrong.append(what)

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {row}" for row in self.rows)])


# Checkpoints


@torch.no_grad()
def fill(model: nn.Module, seed: int) -> None:
    """Noise in every matrix, of a size with which answers vary."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            scale = 1.0 if "embed" in name else GAIN / math.sqrt(parameter.shape[-1])
            parameter.normal_(0, scale, generator=generator)


def write_text(folder: Path, seed: int) -> None:
    """A Qwen3 of 0.8 billion parameters."""
    folder.mkdir()
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, {"processor_class": None})
    config = Qwen3Config(
        vocab_size=tokenizer.padded_size,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.id("<|im_end|>"),
        pad_token_id=tokenizer.id("<|endoftext|>"),
        tie_word_embeddings=False,
    )
    save(lambda: Qwen3ForCausalLM(config), folder, seed, generation_config(tokenizer))


def write_thinker(folder: Path, seed: int) -> None:
    """Qwen3-Omni at its real width, with few layers."""
    write_real_size_folder(folder)
    config: Any = real_config()
    config.thinker_config.text_config.num_hidden_layers = THINKER_LAYERS
    config.talker_config.text_config.num_hidden_layers = 1
    config.save_pretrained(folder)
    save(lambda: Qwen3OmniMoeForConditionalGeneration(config), folder, seed)


def save(make: Callable[[], Any], folder: Path, seed: int, generation: Any = None) -> None:
    """Make a model of bfloat16 on the GPU, fill it and write it."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = make().eval()
        fill(model, seed)
    torch.set_default_dtype(torch.float32)
    if generation is not None:
        model.generation_config = generation
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()


# Asking


def answer(server: TinyServer) -> str:
    """The likeliest answer to one question, and how sure the model is of each token."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Tell me a tale of two cities."}],
        "max_completion_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    response.raise_for_status()
    return str(response.json()["choices"][0]["token_ids"])


def admin(server: TinyServer, command: str, **body: Any) -> tuple[float, httpx.Response]:
    """How long a command took, and its answer."""
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    began = time.monotonic()
    url = f"{server.url}/admin/{command}"
    response = httpx.post(url, json=body, headers=headers, timeout=TIMEOUT_S)
    return time.monotonic() - began, response


def obeyed(server: TinyServer, command: str, **body: Any) -> float:
    """Seconds of a command that must be obeyed."""
    seconds, response = admin(server, command, **body)
    assert response.status_code == 200, response.text
    return seconds


def used_bytes() -> int:
    """Memory of the first GPU that is in use."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        pynvml.nvmlShutdown()


# Checks


def check_sleep(server: TinyServer, level: int, report: Report) -> None:
    """Asleep and awake again, by tag: bytes, seconds, and the answer from before."""
    before, full = answer(server), used_bytes()
    slept_s = obeyed(server, "sleep", level=level)
    asleep = used_bytes()
    weights_s = obeyed(server, "wake", tags=["weights"])
    half = used_bytes()
    cache_s = obeyed(server, "wake", tags=["kv_cache"])
    gib = 1 << 30
    report.check(
        full - asleep > half - asleep > 0,
        f"level {level}: {(full - asleep) / gib:.2f} GiB freed of {full / gib:.2f} in "
        f"{slept_s:.2f} s; weights back {(half - asleep) / gib:.2f} GiB in {weights_s:.2f} s, "
        f"KV cache {(used_bytes() - half) / gib:.2f} GiB in {cache_s:.2f} s",
    )
    report.check(answer(server) == before, f"level {level}: the same answer after it")


def check_refused(server: TinyServer, report: Report) -> None:
    """Checks the refusal of sleep by a server on a CPU."""
    _, response = admin(server, "sleep")
    told = response.json().get("error", {}).get("message", "")
    report.check("enable_sleep_mode" in told, f"sleep is refused by name: {told}")


def check_weights(server: TinyServer, own: Path, other: Path, sleeps: bool, report: Report) -> None:
    """The other checkpoint's weights, its level 2, and the own ones again."""
    before = answer(server)
    seconds = obeyed(server, "load_weights", path=str(other))
    changed = answer(server)
    report.check(changed != before, f"load_weights: another answer, after {seconds:.2f} s")
    if sleeps:
        obeyed(server, "sleep", level=2)
        seconds = obeyed(server, "wake")
        report.check(answer(server) == changed, f"level 2 reads those again, in {seconds:.2f} s")
    obeyed(server, "load_weights", path=str(own))
    report.check(answer(server) == before, "load_weights: the own ones give the first answer")


def run(name: str, kind: str, write: Write, is_tiny: bool, folder: Path) -> Report:
    """All of one model."""
    report = Report(name)
    own, other = folder / f"{name}-0", folder / f"{name}-1"
    for seed, path in enumerate((own, other)):
        write(path, seed)
    began = time.monotonic()
    graph = folder / f"{name}.yaml"
    graph.write_text(yaml.safe_dump(graph_of(kind, is_tiny)))
    log = folder / f"{name}.log"
    options = ("--model", str(own), "--admin-key", ADMIN_KEY)
    try:
        with running_server(str(graph), log, *options) as server:
            report.rows.append(f"ready after {time.monotonic() - began:.1f} s")
            report.check(answer(server) == answer(server), "the same answer twice")
            if is_tiny:
                check_refused(server, report)
            for level in () if is_tiny else (1, 2):
                check_sleep(server, level, report)
            check_weights(server, own, other, not is_tiny, report)
    except (AssertionError, httpx.HTTPError) as error:
        report.check(False, f"it failed: {error}\n{log.read_text()[-3000:]}")
    return report


def graph_of(kind: str, is_tiny: bool) -> Mapping[str, Any]:
    """One stage of this kind."""
    tiny = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())["stages"]["thinker"]
    of_gpu = {**ENGINE, "max_model_len": LENGTHS[kind]}
    of_tiny = {"engine": tiny["engine"], "environment": tiny["environment"]}
    stage = {"kind": kind, **(of_tiny if is_tiny else {"engine": of_gpu})}
    if kind == "vllm.text":
        stage["engine"].pop("limit_mm_per_prompt", None)
    return {"stages": {"text": stage}, "outputs": {"text": "text"}}


MODELS: Mapping[str, tuple[str, Write, Write]] = {
    "text": ("vllm.text", write_text, write_tiny_text),
    "thinker": ("qwen3_omni.thinker", write_thinker, write_tiny_checkpoint),
}


def main() -> None:
    """Print a report of each model; the exit code says whether all was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="tiny checkpoints, on a CPU")
    parser.add_argument("--models", default=",".join(MODELS), help="which, by a comma")
    asked = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        for model in asked.models.split(","):
            kind, write, write_tiny = MODELS[model]
            made = run(model, kind, write_tiny if asked.tiny else write, asked.tiny, Path(name))
            Console(width=160).print(str(made), markup=False, highlight=False)
            wrong += len(made.wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

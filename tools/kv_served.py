"""`make kv-served`: seconds from a prompt's last token to the first step of the flow over it.

Through a server's processes: a BAGEL whose tokens have keys and values of the published model's
size, and little else. Each prompt is drawn of once before it is measured, so that all but its last
block of vLLM's cache is a hit: what leaves is the same.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml
from kv_speed import DTYPES, HEAD, HEADS, LAYERS, LENGTHS, token_bytes
from rich.console import Console
from rich.table import Table
from support.servers.server import TinyServer, running_server

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.bagel.checkpoint.tiny import write_tiny_bagel

TEXT = {
    "hidden_size": HEADS * HEAD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 16384,
}
NUM_MARKS = 2  # of a prompt, whose other tokens are its bytes
MAX_LEN = max(LENGTHS) + 128
DEADLINES = {"first_chunk_s": 600, "next_chunk_s": 600, "hang_s": 600}


@contextmanager
def served(dtype: str, connector: str, log: Path) -> Iterator[TinyServer]:
    """Serve the model with a cache and a pipeline of this dtype."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_tiny_bagel(folder / "model", more=TEXT)
        graph = yaml.safe_load((GRAPHS / "bagel_tiny.yaml").read_text())
        graph["deadlines"] = DEADLINES
        graph["stages"]["llm"]["engine"] |= {
            "dtype": dtype,
            "max_model_len": MAX_LEN,
            "max_num_batched_tokens": MAX_LEN,
            "kv_cache_memory_bytes": 2 * MAX_LEN * token_bytes(dtype),
        }
        graph["stages"]["dit"]["engine"]["dtype"] = dtype
        graph["stages"]["dit"]["environment"] = {"OMP_NUM_THREADS": 1}  # as the other's
        graph["edges"][0]["connector"] = connector
        (folder / "graph.yaml").write_text(yaml.safe_dump(graph))
        with running_server(
            str(folder / "graph.yaml"), log, "--model", str(folder / "model")
        ) as server:
            yield server


def drawn(server: TinyServer, num_tokens: int, name: str) -> dict[tuple[str, str], float]:
    """Draw of a prompt of so many tokens; when the events of its stages were, in ms."""
    prompt = ("an owl and a fox, " * num_tokens)[: num_tokens - NUM_MARKS]
    body = {"prompt": prompt, "size": "64x64", "num_inference_steps": 2, "seed": 1}
    with httpx.Client(timeout=DEADLINES["first_chunk_s"]) as client:
        headers = {"x-request-id": name}
        answer = client.post(f"{server.url}/v1/images/generations", json=body, headers=headers)
        answer.raise_for_status()
        way = client.get(f"{server.url}/admin/traces/{name}").json()["timeline"]
    return {(one["stage"], one["event"]): one["ms"] for one in way}


def measure(server: TinyServer, lengths: Sequence[int], dtype: str, rounds: int) -> Table:
    """Measure each length so many times; the medians as a table."""
    table = Table(title=f"{dtype}: seconds from the last token")
    for heading in ("tokens", "MB", "all there", "first step taken", "a step itself"):
        table.add_column(heading, justify="right")
    for num_tokens in lengths:
        drawn(server, num_tokens, f"{num_tokens}-cold")
        times = []
        for number in range(rounds):
            at = drawn(server, num_tokens, f"{num_tokens}-{number}")
            read, there = at["llm", "read"], at["dit", "embedded"]
            first, last = at["dit", "first_step"], at["dit", "last_step"]
            times.append((there - read, first - read, last - first))
        num_bytes = num_tokens * token_bytes(dtype)
        medians = (statistics.median(one) / 1e3 for one in zip(*times, strict=True))
        row = f"{num_tokens}", f"{num_bytes / 1e6:.0f}", *(f"{one:.4f}" for one in medians)
        table.add_row(*row)
    return table


def main() -> None:
    """Measure all that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connector", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--tokens", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--log", type=Path, default=Path(".cache/kv-served.log"))
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    with served(given.dtype, given.connector, given.log) as server:
        Console().print(measure(server, given.tokens, given.dtype, given.rounds))


if __name__ == "__main__":
    main()

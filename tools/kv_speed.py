"""`make kv-speed`: keys and values from one process's blocks to another's tensors.

Of a model of BAGEL's sizes: seconds from the step that computed the last token until
all is there, and the bytes a second as a share of one memcpy of as many into new memory, in turns.
What arrives first of each length, and is not counted, must have the bits of the blocks.
On a machine with other work the CPU's seconds, of both processes together, say more.
"""

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from support.bridge.kv_layers import Layer, side_by_side, transposed

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Receiver
from omnistage.connectors.large_blocks import set_large_blocks_apart
from omnistage.connectors.sweep import make_run_directory
from omnistage.stages.diffusion.request.upstream.coming_kv import ComingKv, KvRoom
from omnistage.stages.messages.arguments import KvToCome
from omnistage.stages.messages.edge import EDGE, Edge, KeysAndValues
from omnistage.stages.vllm.kv.cached_kv import CachedKv
from omnistage.stages.vllm.kv.kv_meta import DueKv
from omnistage.stages.vllm.kv.kv_sender import KvSender
from omnistage.stages.vllm.step.request_options import RequestOptions

ADDRESS, NAME = "ar.dit.rows", "contexts"
LAYERS, HEADS, HEAD = 28, 4, 128
LENGTHS = (256, 2048, 8192)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LAYOUTS = {"gpu": (side_by_side, 16), "cpu": (transposed, 128)}  # of vLLM 0.32, and blocks


def token_bytes(dtype: str) -> int:
    """Return how many bytes the keys and values of one token have."""
    return LAYERS * 2 * HEADS * HEAD * DTYPES[dtype].itemsize


def send(
    folder: Path, connector: str, layout: str, dtype: torch.dtype, device: torch.device
) -> None:
    """Be the engine: each line of the input is a length to send, and whether it is compared.

    The output is when it began, then the CPU's seconds by its end, and a hash of what is compared.
    """
    write, size = LAYOUTS[layout]
    num_blocks = max(LENGTHS) // size + 2
    shape = num_blocks, HEADS, size, 2 * HEAD
    caches = list(torch.zeros(LAYERS, *shape, dtype=dtype, device=device))
    cached = CachedKv(Layer(write, size), caches, num_blocks, size, (HEADS, HEAD))
    for cache in caches:
        cache.normal_()
    senders = {"dit": make_connector(connector, folder, {}).sender(ADDRESS)}
    sender = KvSender(senders, cached)
    blocks = torch.randperm(num_blocks).tolist()
    say("ready")
    for line in sys.stdin:
        num_tokens, is_compared = map(int, line.split())
        began_at = time.monotonic()
        sender.start(DueKv("a", RequestOptions("a", kv=KeysAndValues(NAME)), blocks, num_tokens))
        say(str(began_at))
        while sender.sending:
            sender.wait(1)
        digest = ""
        if is_compared:
            sent = torch.empty(LAYERS, 2, num_tokens, HEADS, HEAD, dtype=dtype)
            cached.read(torch.tensor(blocks), 0, sent)
            digest = digest_of(sent)
        say(f"{time.process_time()} {digest}")
    sender.close()


def say(line: str) -> None:
    """Write a line to the process that measures."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def digest_of(kv: torch.Tensor) -> str:
    """Return a hash of a tensor's bits."""
    data = kv.cpu().contiguous().view(torch.uint8).numpy().reshape(-1).data
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def receive(
    receiver: Receiver[Edge], num_tokens: int, device: torch.device
) -> tuple[float, torch.Tensor]:
    """Take one request's; return when all was there, and it."""
    room = KvRoom(4 << 30, lambda: None)
    kv = ComingKv({NAME: KvToCome([num_tokens])}, room, device, lambda: None)
    while not kv.is_complete:
        chunk = receiver.receive()
        if chunk is None:
            receiver.wait(60)
            continue
        assert isinstance(chunk.message, KeysAndValues)
        kv.add(chunk.message, receiver, chunk)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic(), kv.tensors[NAME][0]


def copied(num_bytes: int) -> tuple[float, float]:
    """Seconds of a memcpy into new memory, and the CPU's."""
    source = torch.ones(num_bytes, dtype=torch.uint8)
    began_at, before = time.monotonic(), time.process_time()
    source.clone()
    return time.monotonic() - began_at, time.process_time() - before


def measure(
    lengths: Sequence[int],
    connector: str,
    layout: str,
    dtype: str,
    device: torch.device,
    rounds: int,
) -> Table:
    """Measure each length so many times; the medians as a table."""
    run = make_run_directory()
    channels = make_connector(connector, run.path, {})
    channels.create(ADDRESS)
    receiver = channels.receiver(ADDRESS, EDGE)
    command = [sys.executable, __file__, "--send", str(run.path)]
    command += ["--connector", connector, "--layout", layout, "--dtype", dtype]
    command += ["--device", str(device)]
    table = Table(title=f"{connector}, {dtype}, blocks as on a {layout.upper()}, {device}")
    for heading in ("tokens", "MB", "s", "GB/s", "of a memcpy", "CPU s", "of a memcpy's"):
        table.add_column(heading, justify="right")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        sender.stdout.readline()
        theirs = 0.0
        for num_tokens in lengths:
            num_bytes = num_tokens * token_bytes(dtype)
            times = []
            for number in range(rounds):
                before = time.process_time()
                sender.stdin.write(f"{num_tokens} {int(number == 0)}\n")
                done_at, kv = receive(receiver, num_tokens, device)
                ours = time.process_time() - before
                seconds = done_at - float(sender.stdout.readline())
                cpu_s, *digest = sender.stdout.readline().split()
                theirs, past = float(cpu_s), theirs
                if digest and digest != [digest_of(kv)]:
                    raise AssertionError(f"of {num_tokens} tokens other bits arrived")
                del kv
                times.append((seconds, ours + theirs - past, *copied(num_bytes)))
            seconds, cpu, copy, copy_cpu = (median(one) for one in zip(*times[1:], strict=True))
            rate = num_bytes / seconds / 1e9
            row = num_tokens, f"{num_bytes / 1e6:.0f}", f"{seconds:.4f}", f"{rate:.2f}"
            shares = f"{copy / seconds:.0%}", f"{cpu:.4f}", f"{copy_cpu / cpu:.0%}"
            table.add_row(*map(str, row), *shares)
        sender.stdin.close()
    receiver.close()
    channels.destroy(ADDRESS)
    run.remove()
    return table


def main() -> None:
    """Measure all that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connector", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--layout", default="gpu", choices=LAYOUTS)
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--tokens", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--send", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.send is not None:
        send(given.send, given.connector, given.layout, DTYPES[given.dtype], given.device)
        return
    set_large_blocks_apart()  # what arrives and the memcpy go into new memory, at each length
    asked = given.connector, given.layout, given.dtype, given.device, given.rounds
    Console().print(measure(given.tokens, *asked))


if __name__ == "__main__":
    main()

"""`omnistage bench connectors`."""

from rich.console import Console
from rich.table import Table


def connectors() -> None:
    """Measure the shm connector: its latency between processes, its bandwidth over memcpy's."""
    from omnistage.connectors.bench import run_bench

    columns = ("tensor", "one way p50 µs", "p99 µs", "GB/s", "of two memcpys")
    table = Table(*columns, title="shm connector")
    for figures in run_bench():
        table.add_row(
            figures.size,
            f"{figures.one_way_p50_us:.0f}",
            f"{figures.one_way_p99_us:.0f}",
            f"{figures.gb_per_s:.2f}",
            f"{figures.memcpy_ratio:.2f}",
        )
    Console().print(table)

"""`omnistage bench connectors`."""

from rich.console import Console
from rich.table import Table


def connectors() -> None:
    """Measure the connectors: latency between processes, bandwidth over memcpy's."""
    from omnistage.connectors.bench import CONNECTORS, run_bench

    columns = ("tensor", "one way p50 µs", "p99 µs", "GB/s", "of two memcpys", "stream GB/s")
    for name in CONNECTORS:
        table = Table(*columns, title=f"{name} connector")
        for figures in run_bench(name):
            table.add_row(
                figures.size,
                f"{figures.one_way_p50_us:.0f}",
                f"{figures.one_way_p99_us:.0f}",
                f"{figures.gb_per_s:.2f}",
                f"{figures.memcpy_ratio:.2f}",
                f"{figures.stream_gb_per_s:.2f}",
            )
        Console().print(table)

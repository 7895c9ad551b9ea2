"""A layout as tables."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from omnistage.server.cli.planning.layouts import GpuUsage, Layout, title

NOTE = "Memory beyond weights and caches is not known: a tenth of each GPU is left free for it."


def plan_report(chosen: Layout, others: Sequence[Layout]) -> Group:
    """Returns a layout, the memory of one of its servers, and the other layouts that fit."""
    head = Text(f"{chosen.graph.model}, {title(chosen)} ({chosen.form})")
    parts = [_memory(chosen)]
    if others:
        parts.append(_others(others))
    return Group(head, *parts, Text(NOTE))


def _memory(layout: Layout) -> Table:
    table = Table("GPU", "stages", "GB", "of", title="memory of a server")
    memory = f"{layout.gpus.kind.memory_gb:g}"
    for gpu, usage in layout.usage.items():
        total = f"{sum(one.total for one in usage):.1f}"
        table.add_row(str(gpu), "\n".join(map(_usage, usage)), total, memory)
    return table


def _usage(one: GpuUsage) -> str:
    cache = f", {one.cache:.1f} cache" if one.cache else ""
    return f"{one.stage.name}: {one.weights:.1f} weights{cache}"


def _others(layouts: Sequence[Layout]) -> Table:
    table = Table("layout", "--layout", title="other layouts that fit")
    for one in layouts:
        table.add_row(title(one), one.form)
    return table

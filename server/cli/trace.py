"""`omnistage trace`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnistage.server.cli.graphs import fail

WIDTH = 40  # of the bars, in characters
TIMEOUT_S = 10.0
COLORS = ("cyan", "green", "magenta", "yellow", "blue", "red")
TITLES = {
    "request_id": "request",
    "path": "path",
    "status": "status",
    "outcome": "outcome",
    "seconds": "s",
    "ttft_s": "TTFT s",
    "ttfp_s": "TTFP s",
}


def trace(
    request_id: Annotated[
        str | None,
        typer.Argument(
            help="The request: its x-request-id, the id in its answer, or the id of its trace. "
            "Without one, the latest are listed."
        ),
    ] = None,
    url: Annotated[
        str, typer.Option(help="The server that answered it.")
    ] = "http://127.0.0.1:8000",
    admin_key: Annotated[
        str | None, typer.Option(envvar="OMNISTAGE_ADMIN_KEY", help="The server's admin key.")
    ] = None,
) -> None:
    """Draw where the time of a request went, or list the latest requests."""
    place = "" if request_id is None else f"/{quote(request_id, safe='')}"
    told = ask(f"{url.rstrip('/')}/admin/traces{place}", admin_key)
    Console().print(listed(told["traces"]) if request_id is None else drawn(told))


def ask(url: str, admin_key: str | None) -> Mapping[str, Any]:
    """What the server says; typer.Exit if it refuses or cannot be reached."""
    headers = {} if admin_key is None else {"Authorization": f"Bearer {admin_key}"}
    try:
        response = httpx.get(url, headers=headers, timeout=TIMEOUT_S)
        told: Mapping[str, Any] = response.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise fail(f"{url}: {error}") from None
    except ValueError:
        raise fail(f"{url}: no answer of this server's ({response.status_code})") from None
    if response.status_code != httpx.codes.OK:
        raise fail(told["error"]["message"])
    return told


def listed(traces: Sequence[Mapping[str, Any]]) -> Table:
    """A line a request, the last first."""
    table = Table(*TITLES.values())
    for one in traces:
        table.add_row(*(str(one.get(name, "")) for name in TITLES))
    return table


def drawn(told: Mapping[str, Any]) -> Table:
    """A waterfall: the steps laid end to end, then each stage as a whole."""
    whole_ms = max([1e-3, *(row["end_ms"] for row in (*told["steps"], *told["stages"]))])
    stages = list(dict.fromkeys(row["stage"] for row in told["steps"]))
    colors = {stage: COLORS[index % len(COLORS)] for index, stage in enumerate(stages)}
    began = datetime.fromtimestamp(told["began_at"], UTC).isoformat(timespec="milliseconds")
    title = f"{told['request_id']}: {told['path']}, {told.get('outcome', 'running')}, {began}"
    table = Table("stage", "until", "ms", "at ms", "", title=title)
    for row in told["steps"]:
        table.add_row(*_cells(row, row["event"], whole_ms, colors))
    table.add_section()
    for row in told["stages"]:
        table.add_row(*_cells(row, "its end", whole_ms, colors))
    return table


def _cells(
    row: Mapping[str, Any], until: str, whole_ms: float, colors: Mapping[str, str]
) -> tuple[str, str, str, str, Text]:
    start, end = (round(WIDTH * row[name] / whole_ms) for name in ("start_ms", "end_ms"))
    bar = Text(" " * start + "▏" if end == start else " " * start + "█" * (end - start))
    bar.stylize(colors[row["stage"]])
    took_ms = row["end_ms"] - row["start_ms"]
    return row["stage"], until, f"{took_ms:.1f}", f"{row['end_ms']:.1f}", bar

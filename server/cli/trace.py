"""`omnistage trace`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

import httpx
import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from omnistage.server.cli.graphs import fail
from omnistage.stage_configs.json_types import JsonMap

V1 = "/v1"  # where nearly all paths begin
WIDTH = 40  # of the bars, in characters
TIMEOUT_S = 10.0
COLORS = ("cyan", "green", "magenta", "yellow", "blue", "red")
TITLES = {
    "request_id": "request",
    "path": "path",
    "status": "status",
    "outcome": "outcome",
    "seconds": "s",
    "ttft_s": "TTFT",
    "ttfp_s": "TTFP",
}


def trace(
    request_id: Annotated[
        str | None,
        typer.Argument(
            help="The request: its x-request-id, the id in its answer, the id of its trace, or how "
            "one of these begins. Without one, the latest are listed."
        ),
    ] = None,
    url: Annotated[
        str, typer.Option(help="The server that answered it.")
    ] = "http://127.0.0.1:8000",
    admin_key: Annotated[
        str | None,
        typer.Option(
            envvar="OMNISTAGE_ADMIN_KEY",
            help="The server's admin key. A server on this machine that has no keys needs none.",
        ),
    ] = None,
) -> None:
    """Draw where the time of a request went, or list the latest requests."""
    place = "" if request_id is None else f"/{quote(request_id, safe='')}"
    told = ask(f"{url.rstrip('/')}/admin/traces{place}", admin_key)
    Console().print(listed(told["traces"]) if request_id is None else drawn(told))


def ask(url: str, admin_key: str | None) -> JsonMap:
    """Returns what the server says; typer.Exit if it refuses or cannot be reached."""
    headers = {} if admin_key is None else {"Authorization": f"Bearer {admin_key}"}
    try:
        response = httpx.get(url, headers=headers, timeout=TIMEOUT_S)
        told: JsonMap = response.json()
    except httpx.ConnectError:
        server = url.partition("/admin/")[0]
        message = f"no server answers at {server}; start one, or name another with --url"
        raise fail(message) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise fail(f"{url}: {error}") from None
    except ValueError:
        raise fail(f"{url}: no answer of this server's ({response.status_code})") from None
    if response.status_code != httpx.codes.OK:
        raise fail(told["error"]["message"])
    return told


def listed(traces: Sequence[JsonMap]) -> Table:
    """A line a request, the last first."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name, title in TITLES.items():
        # Where the terminal is narrow the path alone is cut.
        table.add_column(title, no_wrap=name != "path", overflow="ellipsis")
    for one in traces:
        table.add_row(*(_cell(one.get(name, "")) for name in TITLES))
    return table


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value).removeprefix(V1)


def drawn(told: JsonMap) -> Group:
    """Two waterfalls: the steps laid end to end, and each stage as a whole."""
    stages = list(dict.fromkeys(row["stage"] for row in told["steps"]))
    colors = {stage: COLORS[index % len(COLORS)] for index, stage in enumerate(stages)}
    began = datetime.fromtimestamp(told["began_at"], UTC).isoformat(timespec="milliseconds")
    head = f"{told['request_id']}: {told['path']}, {told.get('outcome', 'running')}, {began}"
    return Group(
        Text(head),
        _waterfall("until", told["steps"], colors),
        _waterfall("", told["stages"], colors),
    )


def _waterfall(title: str, rows: Sequence[JsonMap], colors: Mapping[str, str]) -> Table:
    """A bar a row; the last end is as wide as there is room."""
    whole_ms = max([1e-3, *(row["end_ms"] for row in rows)])
    table = Table("stage", title)
    for name in ("ms", "at ms"):
        table.add_column(name, justify="right")
    table.add_column(f"0 to {whole_ms:.1f} ms", min_width=WIDTH)
    for row in rows:
        took_ms = row["end_ms"] - row["start_ms"]
        numbers = f"{took_ms:.1f}", f"{row['end_ms']:.1f}"
        bar = _bar(row["start_ms"] / whole_ms, row["end_ms"] / whole_ms, colors[row["stage"]])
        table.add_row(row["stage"], row.get("event", "whole"), *numbers, bar)
    return table


def _bar(begin: float, end: float, color: str) -> Text:
    """From one share of the width to another; what is too short to be seen is a line."""
    first, last = round(WIDTH * begin), round(WIDTH * end)
    return Text(" " * first + ("█" * (last - first) or "▏"), color)

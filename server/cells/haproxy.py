"""HAProxy in front of the cells: its configuration, and where it is installed."""

import json
import os
import re
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.server.cells.layout import Cell
from omnistage.server.http.keys import ADMIN, LOAD_LORA, UNLOAD_LORA

PROGRAM = "haproxy"
ELSEWHERE = ("/usr/sbin", "/usr/local/sbin")  # where Debian has it, which users may not search
OF_ONE_CELL = (ADMIN, LOAD_LORA, UNLOAD_LORA, "/metrics")
SESSION = "x-session-id"  # the header that Ray Serve knows as well
MAX_CONNECTIONS = 20_000
SPARE_FILES = 200  # that HAProxy opens beside its connections
STOP_SLACK_S = 30  # beyond `drain_s`
NO_CELL = ("no_cell", "No cell is ready.")
ONE_CELL = ("of_one_cell", "This path is of one cell: ask it at its own address.")

TEMPLATE = """\
# Written by `omnistage cells`. Check it with: haproxy -c -f THIS_FILE
global
    maxconn {maxconn}
    # A request of up to this size can be sent again to another cell.
    tune.bufsize 262144
    log stderr format raw local0 notice
    hard-stop-after {hard_stop_s}s

defaults
    mode http
    log global
    # Each event of a stream leaves at once.
    option http-no-delay
    # Cells count requests by the client's address, and see when it hangs up.
    option forwardfor
    option abortonclose
    # What a cell has refused or not begun to answer goes to another one, if the whole request was
    # here before the cell got it.
    option http-buffer-request
    retries 3
    retry-on conn-failure empty-response 503
    option redispatch 1
    timeout connect 2s
    timeout check 2s
    timeout queue 30s
    timeout http-request 60s
    timeout http-keep-alive 60s
    # An answer may be silent for long while a picture or a video is made.
    timeout client 1h
    timeout server 1h
    timeout tunnel 24h

frontend front
    bind {bind}
    http-request return status 404 content-type application/json string '{one_cell}' \
if {{ path,url_dec,lower -m reg '{one_cell_paths}' }}
    default_backend cells

backend cells
    balance leastconn
    # Who needs what one cell keeps, such as earlier answers, says so by a name of its own choice.
    stick-table type string len 64 size 100k expire 1h
    stick on req.hdr({session})
    option httpchk
    http-check send meth GET uri {root_path}/ready
    http-check expect status 200
    http-error status 503 content-type application/json string '{no_cell}'
    default-server check inter 500ms fall 1 rise 1
{servers}
"""


@dataclass(frozen=True, slots=True)
class Front:
    """Where clients ask, and how long their answers may take when all is told to stop."""

    host: str
    port: int
    drain_s: float
    root_path: str = ""


def find_haproxy() -> str | None:
    """The program, if it is installed."""
    places = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *ELSEWHERE]
    return shutil.which(PROGRAM, path=os.pathsep.join(places))


def configuration(front: Front, cells: Sequence[Cell]) -> str:
    """The whole file."""
    host = f"[{front.host}]" if ":" in front.host else front.host
    servers = [f"    server {cell.name} {cell.url.partition('://')[2]}" for cell in cells]
    return TEMPLATE.format(
        bind=f"{host}:{front.port}",
        maxconn=max_connections(),
        hard_stop_s=round(front.drain_s) + STOP_SLACK_S,
        one_cell=_quoted(error_body(*ONE_CELL)),
        one_cell_paths=_one_cell_paths(front.root_path),
        no_cell=_quoted(error_body(*NO_CELL)),
        root_path=front.root_path,
        session=SESSION,
        servers="\n".join(servers),
    )


def max_connections() -> int:
    """As many as the system's limit allows; HAProxy has two files for each."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, (limit - SPARE_FILES) // 2))


def error_body(code: str, message: str) -> Mapping[str, Any]:
    """An error as the API has it."""
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def _quoted(body: Mapping[str, Any]) -> str:
    """JSON that stands between single quotes; the bodies here have none."""
    text = json.dumps(body)
    assert "'" not in text
    return text


def _one_cell_paths(root_path: str) -> str:
    """A pattern of the paths that mean one cell and not any of them, below a proxy's or not."""
    root = f"({re.escape(root_path)})?" if root_path else ""
    return f"^{root}({'|'.join(OF_ONE_CELL)})(/|$)"

"""A cell without a model, and what runs several of them: fast, and told what to do by files.

`fake_cell.py cell PORT FOLDER NAME`: a server that becomes ready when FOLDER/NAME.ready is there,
ends with a message and code 3 if FOLDER/NAME.broken is, and on SIGTERM answers /ready with a 503
and ends once FOLDER/NAME.busy is gone. A balancer is such a server, too.
`fake_cell.py run FOLDER NUM_CELLS`: `run_cells` over them. Each writes its process id into
FOLDER/NAME.pid, and each signal that it gets into FOLDER/NAME.signals. `fake_cell.py haproxy FILE
NUM_CELLS`: HAProxy itself, with FILE, before gateways over fake stages.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Fake:
    """One program."""

    def __init__(self, port: int, folder: Path, name: str) -> None:
        self.place = folder / name
        self.is_stopping = False
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self.handler())
        self.marked("pid").write_text(str(threading.get_native_id()))

    def marked(self, mark: str) -> Path:
        return self.place.with_suffix(f".{mark}")

    def handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_ready = fake.marked("ready").exists() and not fake.is_stopping
                self.send_response(200 if is_ready else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGUSR1, self.note)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{self.place.name} listens\n")
        sys.stdout.flush()
        while not self.is_stopping or self.marked("busy").exists():
            if self.marked("broken").exists():
                sys.stdout.write("error: there is no room for it\n")
                sys.exit(3)
            time.sleep(0.01)

    def note(self, number: int, _: object) -> None:
        with self.marked("signals").open("a") as file:
            file.write(f"{signal.Signals(number).name}\n")

    def stop(self, number: int, _: object) -> None:
        self.note(number, None)
        self.is_stopping = True


def run(folder: Path, num_cells: int) -> int:
    """What `omnistage cells` does once its options are read."""
    from omnistage.server.cells.haproxy import Front
    from omnistage.server.cells.layout import Cell, reserved_ports
    from omnistage.server.cells.run import run_cells

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)

    def command_of(cell: Cell) -> Sequence[str]:
        return [sys.executable, __file__, "cell", str(cell.port), str(folder), cell.name]

    with reserved_ports("127.0.0.1", 0, num_cells) as (port, ports):
        placed = [Cell(number, one, ()) for number, one in enumerate(ports)]
        balancer = [sys.executable, __file__, "balancer", str(port), str(folder), "haproxy"]
        return run_cells(placed, command_of, Front("127.0.0.1", port, 2), balancer)


def run_gateways(file: Path, num_cells: int) -> int:
    """Gateways whose stages are fake ones, behind HAProxy."""
    from support import fake_server

    from omnistage.server.cells.haproxy import Front, configuration, find_haproxy
    from omnistage.server.cells.layout import Cell, reserved_ports
    from omnistage.server.cells.run import balancer_command, run_cells

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    haproxy = find_haproxy()
    assert haproxy is not None, "haproxy is not installed"

    def command_of(cell: Cell) -> Sequence[str]:
        program = [sys.executable, str(fake_server.__file__)]
        return ["env", f"FAKE_SERVER_PORT={cell.port}", *program]

    with reserved_ports("127.0.0.1", 0, num_cells) as (port, ports):
        placed = [Cell(number, one, ()) for number, one in enumerate(ports)]
        front = Front("127.0.0.1", port, 2)
        file.write_text(configuration(front, placed))
        return run_cells(placed, command_of, front, balancer_command(haproxy, file))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(Path(sys.argv[2]), int(sys.argv[3])))
    if sys.argv[1] == "haproxy":
        sys.exit(run_gateways(Path(sys.argv[2]), int(sys.argv[3])))
    Fake(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]).serve()

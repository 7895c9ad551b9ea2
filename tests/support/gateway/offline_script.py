"""A program with an `Omni` over fake stages in processes of their own; its argument says its end.

It prints `running` once requests are in the graph, and how it ended. OFFLINE_LOG_LEVEL is its
`log_level`.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.fakes.server import launch
from support.gateway.serving import OMNI

from omnistage import Omni
from omnistage.server.runtime.flights import Flights
from omnistage.stage_configs.graph import StageGraph

ENDLESS = ["hang", "hang", "endless"]


def say_when_running(flights: Flights) -> None:
    while flights.num_running + flights.num_waiting < len(ENDLESS) or not flights.num_running:
        time.sleep(0.01)
    sys.stdout.write("running\n")
    sys.stdout.flush()


def main(end: str) -> None:
    level: Any = os.environ.get("OFFLINE_LOG_LEVEL", "info")
    graph = StageGraph.model_validate(OMNI)
    omni = Omni(graph, _launch=launch, progress=False, log_level=level)
    assert omni.chat("words").text == "Hello there"
    if end.startswith("interrupt"):
        flights = omni._omni._engine.runtime.flights
        threading.Thread(target=say_when_running, args=(flights,), daemon=True).start()
    if end == "interrupt":
        with omni:
            omni.generate(ENDLESS)
    elif end == "interrupt without a block":
        omni.generate(ENDLESS)
    elif end == "raise":
        with omni:
            for _ in omni.stream_chat("endless"):
                raise RuntimeError("in the block")
    elif end == "drop":
        del omni
    else:
        assert end == "forget"


if __name__ == "__main__":
    # Below a shell's job in the background it would be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1])

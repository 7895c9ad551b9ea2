"""A whole server whose stages are fake ones in processes of their own: `serve` without models.

Run as a script: without arguments it serves, with the name of a graph that graph, in half of the
usual room for decoding. Its stages are stage.py, which imports nothing of a server.
FAKE_SERVER_MPS is the server's `--mps`, FAKE_SERVER_LOG its `--log-format`, FAKE_SERVER_LEVEL its
`--log-level`, FAKE_SERVER_TLS a folder with its cert.pem and key.pem, FAKE_SERVER_PORT its port,
FAKE_SERVER_DRAIN_S the graph's `drain_s`, FAKE_SERVER_HANG_UP_S how long clients that take nothing
are waited for, FAKE_SERVER_PAGE the port of a page beside the server, FAKE_SERVER_VIDEOS the folder
of its videos and FAKE_SERVER_VIDEO_BYTES how many bytes that may have.
"""

import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.gateway.serving import IMAGES, OMNI, STUDIO

from omnistage.server import serve as serving
from omnistage.server.cli.serving.page_process import PageProcess
from omnistage.server.options.bounds import VideoBounds
from omnistage.server.options.gateway import GatewayOptions, Tls
from omnistage.server.runtime.processes.mps_daemon import Mps
from omnistage.server.runtime.processes.process import StageProcess
from omnistage.server.serve import serve
from omnistage.server.telemetry.logs import LogFormat, LogLevel
from omnistage.stage_configs.graph import StageGraph

GRAPHS = {"omni": OMNI, "images": IMAGES, "studio": STUDIO}
DECODE_BYTES = 512 << 20
STAGE = Path(__file__).with_name("stage.py")


def launch(name: str, directory: Path) -> StageProcess:
    command = [sys.executable, str(STAGE), name, str(directory), str(os.getpid())]
    return StageProcess(name, directory, command)


if __name__ == "__main__":
    graph = StageGraph.model_validate(GRAPHS[sys.argv[1] if sys.argv[1:] else "omni"])
    drain_s = float(os.environ.get("FAKE_SERVER_DRAIN_S", graph.deadlines.drain_s))
    deadlines = graph.deadlines.model_copy(update={"drain_s": drain_s})
    graph = graph.model_copy(update={"deadlines": deadlines})
    serving.HANG_UP_S = int(os.environ.get("FAKE_SERVER_HANG_UP_S", serving.HANG_UP_S))
    mps = Mps(os.environ.get("FAKE_SERVER_MPS", Mps.OFF))
    log_format = LogFormat(os.environ.get("FAKE_SERVER_LOG", LogFormat.TEXT))
    files = os.environ.get("FAKE_SERVER_TLS")
    tls = Tls(Path(files, "cert.pem"), Path(files, "key.pem")) if files else None
    videos = os.environ.get("FAKE_SERVER_VIDEOS")
    options = GatewayOptions(
        videos=VideoBounds(
            folder=Path(videos) if videos else None,
            max_bytes=int(os.environ.get("FAKE_SERVER_VIDEO_BYTES", 1 << 30)),
        ),
        decode_bytes=DECODE_BYTES,
        mps=mps,
        log_format=log_format,
        log_level=LogLevel(os.environ.get("FAKE_SERVER_LEVEL", LogLevel.INFO)),
        tls=tls,
    )
    port = int(os.environ.get("FAKE_SERVER_PORT", 0))
    page_port = os.environ.get("FAKE_SERVER_PAGE")
    page_at = None
    if page_port:
        page_at = partial(PageProcess, host="127.0.0.1", port=int(page_port), api_key=None)
    sys.exit(serve(graph, "127.0.0.1", port, launch, options, page_at=page_at))

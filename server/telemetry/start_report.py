"""Reports a start to the person who typed it: progress, readiness, first commands."""

import json
import logging
import time
from collections.abc import Mapping

import psutil
from rich.console import Console
from rich.text import Text

from omnistage.server.telemetry.quiet import QuietTerminal
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import generates_audio
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.models.cache_folder import logs_folder
from omnistage.stage_configs.models.random_weights import RANDOM_NOTE, has_random_weights, note_of
from omnistage.stage_configs.packages import VLLM_PACKAGES, installed

logger = logging.getLogger(__name__)

FIRST_REQUESTS: Mapping[str, tuple[str, JsonMap, str]] = {
    "text": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, ""),
    "audio": ("/v1/audio/speech", {"input": "Hello.", "response_format": "wav"}, " -o hello.wav"),
    "image": ("/v1/images/generations", {"prompt": "A red circle"}, " -o image.json"),
    "video": ("/v1/videos/sync", {"prompt": "A red circle"}, " -o video.mp4"),
    "embedding": ("/v1/embeddings", {"input": "Hi"}, ""),
}
GENERATE = ("/v1/audio/generate", {"input": "Rain"}, " -o rain.wav")
TRANSCRIBE = "/v1/audio/transcriptions -F file=@speech.wav"
WIDTH = 36  # of the first column


class StartReport:
    """The report of one start: lines on a quiet terminal, lines of the log elsewhere.

    `needs_key`: clients need an API key. `has_page`: a page
    that is started beside the server is reported by who starts it.
    """

    def __init__(
        self,
        graph: StageGraph,
        console: Console,
        quiet: QuietTerminal | None,
        *,
        needs_key: bool = False,
        has_page: bool = False,
    ) -> None:
        self._graph = graph
        self._console = console
        self._quiet = quiet
        self._needs_key = needs_key
        self._has_page = has_page

    def begin(self) -> None:
        """Reports what is started: versions, model, what is special about it."""
        graph = self._graph
        if self._quiet is None:
            if graph.note:
                logger.warning("%s is served as %s", graph.model, graph.note)
            if has_random_weights(graph):
                logger.warning("%s has %s", graph.model, RANDOM_NOTE)
            return
        vllm = installed(*VLLM_PACKAGES)
        versions = f"omnistage {installed('omnistage')}" + (f", vLLM {vllm}" if vllm else "")
        note = note_of(graph)
        self._print(f"{versions}: {self._model}" + (f"; {note}" if note else ""))

    def ready(self, url: str) -> None:
        """Reports that every stage is ready, with the seconds since this process began.

        `url`: the server's, without a path, as it can be opened.
        """
        seconds = time.time() - psutil.Process().create_time()
        if self._quiet is None:
            logger.info("ready after %.1f s: %s serves %s", seconds, url, self._model)
            return
        self._print(f"Ready after {seconds:.0f} s: {url}/v1")
        self._print(f"  {self.curl(url)}")
        for notice in self._quiet.notices:
            self._print(f"  {notice}")
        if not self._has_page:
            command = "omnistage demo"
            if not url.endswith("://127.0.0.1:8000"):
                command += f" --url {url}"
            self._print(f"  {command:{WIDTH}} a page in the browser")
        self._print(f"  {f'{url}/docs':{WIDTH}} the API")
        self._print(f"  {logs_folder()!s:{WIDTH}} what the stages print")
        self._quiet.has_started = True

    def failed(self, stage: str) -> None:
        """Shows what a stage that could not start warned of."""
        for line in () if self._quiet is None else self._quiet.warnings_of(stage):
            self._console.print(Text(f"[{stage}] {line}", "dim"), soft_wrap=True)

    def curl(self, url: str) -> str:
        """Returns a command that asks the server for the first of its outputs."""
        key = ' -H "authorization: Bearer $OMNISTAGE_API_KEY"' if self._needs_key else ""
        output = next((one for one in FIRST_REQUESTS if one in self._graph.outputs), None)
        if output is None:
            return f"curl {url}{TRANSCRIBE}{key}"
        is_generated = output == "audio" and generates_audio(self._graph)
        path, body, more = GENERATE if is_generated else FIRST_REQUESTS[output]
        head = f"{key} -H 'content-type: application/json'"
        return f"curl {url}{path}{head} -d '{json.dumps(body, separators=(',', ':'))}'{more}"

    @property
    def _model(self) -> str:
        made = ", ".join(self._graph.outputs)
        return f"{self._graph.served_name} ({made})"

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

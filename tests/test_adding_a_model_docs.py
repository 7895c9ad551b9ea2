"""The example in docs/adding-a-model.md serves a request as it stands there."""

import asyncio
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support.gateway import outputs_of

from omnistage.connectors import make_connector
from omnistage.server.chat.chunks import AnswerHead, TextChunks
from omnistage.server.chat.completion import Completion
from omnistage.server.runtime.request import Request
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.kinds import Kind
from omnistage.stages.worker.stage_worker import StageWorker

TEXT = (Path(__file__).parent.parent / "docs" / "adding-a-model.md").read_text()


class WorkerTask:
    """A stage's worker as a task of this process."""

    def __init__(self, graph: Any, name: str, directory: Path) -> None:
        self._task = asyncio.create_task(StageWorker(graph, name, directory).run())

    async def start(self) -> None:
        return

    async def wait(self) -> str:
        await asyncio.shield(self._task)
        return "end"

    def kill(self) -> None:
        self._task.cancel()

    async def stop(self, grace_s: float) -> None:
        await asyncio.wait_for(self._task, grace_s)


async def test_the_example_serves(run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, entry = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (graph_text,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    module = types.ModuleType("docs_echo")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "docs_echo", module)
    monkeypatch.setitem(KINDS, "docs.echo", Kind("", frozenset()))
    exec(entry, {"KINDS": KINDS, "Kind": Kind})
    directory = run_directory / "docs"
    directory.mkdir()
    (directory / "graph.yaml").write_text(graph_text)
    graph = load_graph(directory / "graph.yaml")

    def launch(name: str, directory: Path) -> WorkerTask:
        return WorkerTask(graph, name, directory)

    async with Runtime(graph, directory, launch, make_connector) as runtime:
        await runtime.fleet.loaded()
        body = {"messages": [{"role": "user", "content": "Once more please"}]}
        chunks, completion = TextChunks(AnswerHead("a", "echo")), Completion()
        async for output in outputs_of(runtime, Request("a", ("text",), body)):
            for chunk in chunks.chunks_of(output):
                completion.add(chunk)
        for chunk in chunks.finish():
            completion.add(chunk)
    message = completion.to_text()["choices"][0]["message"]
    assert message["content"] == "Once more please "

"""One generation of a stage on a node that a cluster chooses: what a supervisor starts and ends."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from omnistage.server.placement.nodes import NodeLost, Nodes, RunningNode
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.gpus import VISIBLE
from omnistage.stages.messages.loading import Loading, Phase, write_loading

logger = logging.getLogger(__name__)

ROOM_INTERVAL_S = 0.25
ROOM_WARNING_S = 10.0
STOP_PATIENCE_S = 30.0
STOPPED = "it was stopped"


class PlacedStage:
    """A stage's process on another machine, or on this one.

    It has started once there is a task for it: a node with room may come much later, and whatever
    prevents the start is how it ended. `is_ready` is what the gateway knows.
    """

    def __init__(
        self,
        name: str,
        spec: StageSpec,
        model: str,
        nodes: Nodes,
        directory: Path,
        is_ready: Callable[[str], bool],
    ) -> None:
        self._name = name
        self._spec = spec
        self._model = model
        self._nodes = nodes
        self._directory = directory
        self._is_ready = is_ready
        self._node: RunningNode | None = None

    async def start(self) -> None:
        """Look for a node from now on."""
        self._living = asyncio.create_task(self._live())

    async def wait(self) -> str:
        """How it ended."""
        await asyncio.wait({self._living})
        return STOPPED if self._living.cancelled() else self._living.result()

    def kill(self) -> None:
        """End it at once."""
        if self._node is None:
            self._living.cancel()
        else:
            killing = self._node.agent.kill(self._name)
            self._killing = asyncio.create_task(self._node.ask(killing))

    async def stop(self, grace_s: float) -> None:
        """Let it end by itself for `grace_s`, then ask, then kill."""
        if self._node is None:
            self._living.cancel()
        else:
            stopping = self._node.agent.stop(self._name, grace_s)
            await self._node.ask(stopping, grace_s + STOP_PATIENCE_S)
        await asyncio.wait({self._living})

    async def _live(self) -> str:
        """From the search for a node to the end of the process, and how it ended."""
        try:
            node = await self._nodes.on(await self._room())
            if problem := await self._problem(node):
                return problem
            await self._nodes.place(self._name, node)
            return await self._run_on(node)
        except NodeLost as error:
            return str(error)
        except Exception as error:
            logger.exception("stage %s cannot run on a node", self._name)
            return f"it cannot run on a node: {error}"
        finally:
            write_loading(self._directory, self._name, None)

    async def _room(self) -> str:
        """The node on which there is room, as soon as there is one."""
        write_loading(self._directory, self._name, Loading(Phase.PLACING))
        loop = asyncio.get_running_loop()
        warned_at = loop.time()
        while (node := await self._nodes.cluster.node_of(self._name)) is None:
            if loop.time() - warned_at >= ROOM_WARNING_S:
                warned_at = loop.time()
                wanted = ", ".join(f"{what} {much:g}" for what, much in self._spec.bundle.items())
                logger.warning("stage %s waits for a node with %s", self._name, wanted)
            await asyncio.sleep(ROOM_INTERVAL_S)
        return node

    async def _problem(self, node: RunningNode) -> str:
        """Why the stage could not load there; empty if nothing is known."""
        if not self._model.startswith("/") or await node.agent.has_folder(self._model):
            return ""
        return f"node {node.host} has no folder {self._model}, the model of stage {self._name}"

    async def _run_on(self, node: RunningNode) -> str:
        gpus = await self._nodes.cluster.gpus_of(self._name)
        environment = {VISIBLE: ",".join(gpus)}
        ending = asyncio.create_task(self._process(node, environment))
        try:
            while not (ending.done() or node.is_lost):
                unlinked = node.unlinked
                waits = {ending, node.lost, unlinked}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if unlinked.done() and not self._is_ready(self._name):
                    await node.ask(node.agent.kill(self._name))
                    return unlinked.result()  # what it said when it was ready may be lost
            return ending.result() if ending.done() else node.lost.result()
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    async def _process(self, node: RunningNode, environment: Mapping[str, str]) -> str:
        if self._living.cancelling():
            return STOPPED
        self._node = node  # the start is asked for at once, and a stop or a kill after it
        try:
            await node.agent.start(self._name, environment)
            logger.info("stage %s is on node %s", self._name, node.host)
            return await node.agent.wait(self._name)
        except NodeLost as error:
            node.lose(node.gone(error))
            return node.lost.result()

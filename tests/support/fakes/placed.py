"""A placed stage, and the graph that it is of."""

from collections.abc import Collection
from pathlib import Path

from support.fakes.nodes import FakeAgent, FakeCluster
from support.waiting import until

from omnistage.server.placement.nodes import Nodes
from omnistage.server.placement.placed_stage import PlacedStage
from omnistage.stage_configs.graph import StageGraph

MODEL = "/models/omni"
HANG_S = 1.5
GRAPH = StageGraph.model_validate(
    {
        "model": MODEL,
        "deadlines": {"hang_s": HANG_S},
        "placement": "ray",
        "stages": {
            "thinker": {"kind": "qwen3_omni.thinker", "gpus": 1},
            "talker": {"kind": "qwen3_omni.talker"},
            "code2wav": {"kind": "qwen3_omni.code2wav", "resources": {"CPU": 3, "left": 0.5}},
        },
        "edges": [{"from": "thinker", "to": "talker"}, {"from": "talker", "to": "code2wav"}],
        "outputs": {"text": "thinker", "audio": "code2wav"},
    }
)


class Placed:
    """Stages of the graph on a fake cluster."""

    def __init__(self, directory: Path, cluster: FakeCluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.lost: list[set[tuple[str, str]]] = []
        self.ready: set[str] = set()  # as the gateway knows
        self.nodes = Nodes(GRAPH, directory, {"LEVEL": "INFO"}, cluster, self._note_loss)

    def _note_loss(self, edges: Collection[tuple[str, str]]) -> None:
        self.lost.append(set(edges))

    def stage(self, name: str) -> PlacedStage:
        spec, model = GRAPH.stages[name], GRAPH.model_of(name)
        return PlacedStage(name, spec, model, self.nodes, self.directory, self._is_ready)

    def _is_ready(self, name: str) -> bool:
        return name in self.ready

    def agent(self, node: str) -> FakeAgent:
        """The one that was made last on a node."""
        return self.cluster.agents[node][-1]

    async def started(self, name: str) -> PlacedStage:
        """A stage whose process runs."""
        stage = self.stage(name)
        await stage.start()
        node = self.cluster.places[name]
        await until(lambda: node in self.cluster.agents and name in self.agent(node).ends)
        return stage

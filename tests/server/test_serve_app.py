"""The application for Ray Serve, without a Ray: its arguments, its files, a replica's life."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema
from support.fake_stages import FakeGraph
from support.gateway import MODEL, OMNI, SharedConnector
from support.waiting import until

from omnistage.server import serve_app
from omnistage.server.cells.ready_router import ReadyRouter
from omnistage.server.runtime.fleet import Fleet
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.serve_app import STOP_S, Arguments, Cell, app, build_cell
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.pick import GRAPHS

ROOT = Path(__file__).parents[2]
TINY = str(GRAPHS / "qwen3_omni_tiny.yaml")


def test_a_replica_has_all_that_a_cell_needs_on_one_node_and_the_router_that_asks() -> None:
    deployment = app(Arguments(target="m", cells=3, gpus=2, cpus=8, requests=7, drain_s=60))
    config = deployment._bound_deployment._deployment_config
    replica = deployment._bound_deployment._replica_config
    assert config.num_replicas == 3
    assert config.max_ongoing_requests == 7
    assert config.graceful_shutdown_timeout_s == 60 + STOP_S
    router = config.request_router_config
    assert router.get_request_router_class() is ReadyRouter
    assert router.request_routing_stats_period_s == 0.5
    assert replica.placement_group_bundles == [{"CPU": 8, "GPU": 2}]
    assert replica.placement_group_strategy == "STRICT_PACK"
    assert replica.ray_actor_options["num_gpus"] == 2


def test_a_cell_without_gpus_asks_for_none() -> None:
    replica = app(Arguments(target="m"))._bound_deployment._replica_config
    assert replica.placement_group_bundles == [{"CPU": 1}]


def test_changes_of_a_graph_are_those_of_the_command_line() -> None:
    arguments = Arguments(
        target=TINY,
        model="m",
        stage=["thinker.max_model_len=99"],
        set=["deadlines.start_s=60"],
        set_default=["talker.temperature=0.7"],
        served_model_name=["a", "b"],
        drain_s=12,
    )
    graph = arguments.graph()
    assert graph.stages["thinker"].engine["max_model_len"] == 99
    assert graph.stages["talker"].default_sampling_params.given == {"temperature": 0.7}
    assert (graph.deadlines.start_s, graph.deadlines.drain_s) == (60, 12)
    assert graph.served_names == ("a", "b")


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Arguments.model_validate({"target": "m", "gpu": 1})
    with pytest.raises(GraphError, match="model: the key is missing"):
        Arguments(target=TINY).graph()
    with pytest.raises(GraphError, match="placement ray: a cell has its stages on its own node"):
        Arguments(target=TINY, model="m", set=["placement=ray"]).graph()


def applications(text: str) -> list[Any]:
    """Of a configuration file of Serve, which Serve itself reads."""
    return list(ServeDeploySchema.model_validate(yaml.safe_load(text)).applications)


def of_kuberay() -> str:
    service = yaml.safe_load((ROOT / "docker/kubernetes/rayservice.yaml").read_text())
    return str(service["spec"]["serveConfigV2"])


def of_a_file() -> str:
    """With the part that is commented out."""
    text = (ROOT / "docker/ray-serve.yaml").read_text().partition("proxy_location")
    lines = "".join(text[1:]).splitlines()
    return "\n".join(line.replace("# ", "", 1) for line in lines if "Anything" not in line)


@pytest.mark.parametrize("text", [of_a_file(), of_kuberay()], ids=["file", "KubeRay"])
def test_the_files_for_serve_name_the_application_and_arguments_that_it_takes(text: str) -> None:
    (described,) = applications(text)
    module, _, name = described.import_path.partition(":")
    assert module == serve_app.__name__
    assert getattr(serve_app, name) is app
    arguments = Arguments.model_validate(described.args)
    assert {one.name for one in described.deployments} <= {"Cell"}
    assert app(arguments)._bound_deployment.name == "Cell"


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGraph:
    """Those of the replica that a test builds, in this process."""
    shared = SharedConnector(tmp_path)
    fake = FakeGraph(shared.connector)
    made: Any = partial(Runtime, launch=fake.launch, make_connector=shared)
    monkeypatch.setattr(serve_app, "Runtime", made)
    graph = StageGraph.model_validate(OMNI)
    monkeypatch.setattr(Arguments, "graph", lambda _: graph)
    return fake


@asynccontextmanager
async def replica() -> AsyncIterator[tuple[Cell, httpx.AsyncClient]]:
    """One that has begun, as Serve begins it."""
    cell = Cell(Arguments(target=MODEL).model_dump(mode="json"))
    built = build_cell()
    async with built.router.lifespan_context(built):
        transport = httpx.ASGITransport(built)
        async with httpx.AsyncClient(transport=transport, base_url="http://cell") as client:
            yield cell, client


async def test_a_replica_answers_once_its_stages_are_ready_and_they_end_with_it(
    stages: FakeGraph,
) -> None:
    async with replica() as (cell, client):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello there"
        assert await cell.record_routing_stats() == {"ready": True}
        await cell.check_health()
    assert sorted(stages.launched) == sorted(StageGraph.model_validate(OMNI).stages)
    for stage in stages.stages.values():
        assert await stage.wait() == "stop"


async def told(cell: Cell, is_ready: bool) -> None:
    """The router is told so, before long."""
    async with asyncio.timeout(10):
        while await cell.record_routing_stats() != {"ready": is_ready}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_replica_that_loses_a_stage_tells_the_router_and_is_healthy_meanwhile(
    stages: FakeGraph,
) -> None:
    async with replica() as (cell, _):
        stages.is_loading = {"talker"}
        stages.stages["talker"].kill()
        await told(cell, False)
        await cell.check_health()
        await until(lambda: stages.launched.count("talker") == 2)
        stages.stages["talker"].become_ready()
        await told(cell, True)


async def test_a_replica_whose_stage_is_not_started_again_is_replaced(
    stages: FakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica() as (cell, _):
        monkeypatch.setattr(Fleet, "is_broken", True)
        with pytest.raises(RuntimeError, match="a stage has ended for good"):
            await cell.check_health()


async def test_keys_come_from_the_environment(
    stages: FakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNISTAGE_API_KEY", "sk-a sk-b")
    async with replica() as (cell, client):
        assert (await client.get("/v1/models")).status_code == 401
        allowed = {"authorization": "Bearer sk-b"}
        assert (await client.get("/v1/models", headers=allowed)).status_code == 200
        assert await cell.record_routing_stats() == {"ready": True}


@pytest.mark.parametrize("path", ["/v1/models", "/admin/scale", "/omni/admin/scale"])
async def test_keys_are_asked_for_below_a_route_prefix_too(
    path: str, stages: FakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve leaves its prefix in the path of a request, and names it as the root."""
    monkeypatch.setenv("OMNISTAGE_API_KEY", "sk-a")
    monkeypatch.setenv("OMNISTAGE_ADMIN_KEY", "sk-b")
    async with replica():
        transport = httpx.ASGITransport(Cell.built, root_path="/omni")
        async with httpx.AsyncClient(transport=transport, base_url="http://cell/omni") as client:
            send = client.get if path == "/v1/models" else client.post
            assert (await send(path)).status_code == 401
            allowed = {"authorization": "Bearer sk-a"}
            answer = await client.get("/v1/models", headers=allowed)
            assert answer.json()["data"][0]["id"] == MODEL

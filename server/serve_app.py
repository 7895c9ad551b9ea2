"""Cells by Ray Serve: each replica is a gateway with the stages of a whole graph below it.

    serve run docker/ray-serve.yaml

`app` builds the application from its arguments. Serve starts, watches, replaces and drains the
replicas, on whichever nodes have what one needs.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from rich.console import Console

from omnistage.connectors.large_blocks import set_large_blocks_apart
from omnistage.connectors.sweep import make_run_directory, sweep
from omnistage.server.app import build_app
from omnistage.server.cells.ready_router import READY, ReadyRouter
from omnistage.server.http.keys import Keys
from omnistage.server.http.root_path import BelowRoot
from omnistage.server.options import GatewayOptions
from omnistage.server.runtime.mps_daemon import Mps, end_daemon, mps_daemon
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.telemetry.logs import configure_logging
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.overrides import (
    any_override,
    default_override,
    name_override,
    stage_override,
)
from omnistage.stage_configs.pick import resolve

STOP_S = 30.0  # from the last answer's end until stages have ended
KEYS, ADMIN_KEYS = "OMNISTAGE_API_KEY", "OMNISTAGE_ADMIN_KEY"  # as of `omnistage serve`

NO_NODES = "placement ray: a cell has its stages on its own node; run `omnistage serve` for nodes"


class Arguments(BaseModel):
    """What one cell serves, and what it needs.

    `target`, `model`, `stage`, `set`, `set_default` and `served_model_name` are those of
    `omnistage serve`. `gpus` and `cpus` are what one cell has on its node. `requests` is how many
    a cell takes at once, beyond which Serve lets them wait. `drain_s`: as in a graph file.
    """

    model_config = ConfigDict(extra="forbid")

    target: str
    model: str | None = None
    stage: list[str] = []
    set: list[str] = []
    set_default: list[str] = []
    served_model_name: list[str] = []
    cells: int = Field(default=1, ge=1)
    gpus: int = Field(default=0, ge=0)
    cpus: float = Field(default=1, gt=0)
    requests: int = Field(default=64, ge=1)
    drain_s: float = Field(default=30, ge=0)
    mps: Mps = Mps.AUTO
    routing_stats_s: float = Field(default=0.5, gt=0)

    def graph(self) -> StageGraph:
        """The graph, chosen by the GPUs that this replica has; GraphError, OverrideError."""
        changes = [
            *map(any_override, [*self.set, f"deadlines.drain_s={self.drain_s}"]),
            *map(stage_override, self.stage),
            *map(default_override, self.set_default),
            *([name_override(self.served_model_name)] if self.served_model_name else []),
        ]
        graph = resolve(self.target, self.model, changes)
        if graph.placement.is_on_nodes:
            raise GraphError(NO_NODES)
        return graph

    @property
    def bundle(self) -> dict[str, float]:
        """What one cell needs, all of it on one node."""
        return {"CPU": self.cpus, **({"GPU": float(self.gpus)} if self.gpus else {})}


class Cell:
    """A replica. Its application's life is that of its stages: it begins when all are ready."""

    # Of this process, in which there is one replica.
    arguments: Arguments
    built: FastAPI

    def __init__(self, arguments: dict[str, Any]) -> None:
        Cell.arguments = Arguments.model_validate(arguments)

    async def record_routing_stats(self) -> dict[str, Any]:
        """What the router asks for."""
        return {READY: await self._status("/ready") == httpx.codes.OK}

    async def check_health(self) -> None:
        """Raises once a stage is not started again: then Serve replaces the replica."""
        if await self._status("/health") != httpx.codes.OK:
            raise RuntimeError("a stage has ended for good: GET /health says which")

    async def _status(self, path: str) -> int:
        transport = httpx.ASGITransport(Cell.built)
        async with httpx.AsyncClient(transport=transport, base_url="http://cell") as client:
            return (await client.get(path)).status_code


def build_cell() -> FastAPI:
    """The gateway's application, whose life is that of its stages."""
    arguments = Cell.arguments
    configure_logging(Console(stderr=True, force_terminal=False))
    set_large_blocks_apart()
    sweep(before=end_daemon)
    graph = arguments.graph()
    run = make_run_directory()
    runtime = Runtime(graph, run.path)
    options = GatewayOptions(keys=_keys(KEYS), admin_keys=_keys(ADMIN_KEYS), mps=arguments.mps)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        try:
            with mps_daemon(options.mps, graph, run.path):
                async with runtime:
                    await runtime.fleet.loaded()
                    yield
        finally:
            run.remove()

    Cell.built = build_app(runtime, options)
    Cell.built.add_middleware(BelowRoot)  # Serve's route prefix: keys are judged by what is below
    Cell.built.router.lifespan_context = life
    return Cell.built


def _keys(variable: str) -> Keys:
    """Those of the environment, which `runtime_env` may set."""
    return Keys(os.environ.get(variable, "").split())


def app(arguments: Arguments) -> Application:
    """The application: `import_path` of a configuration file, whose `args` are the arguments.

    What else a deployment can be told is told there below `deployments`, by the name Cell.
    """
    needs = arguments.bundle
    deployment = serve.deployment(
        name="Cell",
        num_replicas=arguments.cells,
        max_ongoing_requests=arguments.requests,
        ray_actor_options={"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)},
        placement_group_bundles=[needs],
        placement_group_strategy="STRICT_PACK",
        health_check_period_s=5,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=arguments.drain_s + STOP_S,
        request_router_config=RequestRouterConfig(
            request_router_class=ReadyRouter,
            request_routing_stats_period_s=arguments.routing_stats_s,
        ),
    )(serve.ingress(build_cell)(Cell))
    return deployment.bind(arguments.model_dump(mode="json"))

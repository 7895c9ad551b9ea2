"""Where spans go: the address of a collector, and what vLLM's engines are told of it."""

from urllib.parse import urlsplit

from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph

PATH = "/v1/traces"  # OTLP's own, below a collector's address


def traces_url(endpoint: str) -> str:
    """Where spans are posted: a collector's address, or already a path of it.

    Raises ValueError for what is no address.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{endpoint!r} is no http(s) address of a collector")
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}{PATH}"


def with_traces(graph: StageGraph, url: str) -> StageGraph:
    """The graph whose vLLM engines export their own spans there, too."""
    stages = {name: _traced(stage, url) for name, stage in graph.stages.items()}
    return graph.model_copy(update={"stages": stages})


def _traced(stage: StageSpec, url: str) -> StageSpec:
    # vLLM makes its spans of its statistics, and fails without them.
    if not KINDS[stage.kind].is_parallel or stage.engine.get("disable_log_stats"):
        return stage
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": f"omnistage.{stage.name}",
        **stage.environment,
    }
    engine = {"otlp_traces_endpoint": url, **stage.engine}
    return stage.model_copy(update={"environment": environment, "engine": engine})

"""Where spans go, and what engines are told of it."""

import pytest
from support.gateway.serving import OMNI

from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.traces import traces_url, with_traces

URL = "http://collector:4318/v1/traces"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", URL),
        ("http://collector:4318/", URL),
        (URL, URL),
        ("https://example.org/otlp/traces", "https://example.org/otlp/traces"),
    ],
)
def test_a_collector_s_address_becomes_that_of_its_traces(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["", "collector:4318", "grpc://collector:4317", "http://"])
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="no http"):
        traces_url(endpoint)


def test_only_vllm_s_engines_are_told_and_a_graph_file_s_own_words_stay() -> None:
    graph = StageGraph.model_validate(OMNI)
    own = {"OTEL_SERVICE_NAME": "mine"}
    talker = graph.stages["talker"].model_copy(update={"environment": own})
    graph = graph.model_copy(update={"stages": {**graph.stages, "talker": talker}})
    traced = with_traces(graph, URL).stages
    assert traced["code2wav"] == graph.stages["code2wav"]
    for name in ("thinker", "talker"):
        assert traced[name].engine["otlp_traces_endpoint"] == URL
        protocol = traced[name].environment["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]
        assert protocol == "http/protobuf"
    services = [traced[name].environment["OTEL_SERVICE_NAME"] for name in ("thinker", "talker")]
    assert services == ["omnistage.thinker", "mine"]


def test_an_engine_without_statistics_makes_no_spans() -> None:
    graph = StageGraph.model_validate(OMNI)
    silent = graph.stages["talker"].model_copy(update={"engine": {"disable_log_stats": True}})
    graph = graph.model_copy(update={"stages": {**graph.stages, "talker": silent}})
    traced = with_traces(graph, URL).stages
    assert traced["talker"] == silent
    assert "otlp_traces_endpoint" in traced["thinker"].engine

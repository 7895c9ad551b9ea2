"""Prometheus and Grafana of docker/ query the servers of compose.yaml, by metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import dashboard
import httpx
import pytest
import yaml
from support.gateway.serving import OMNI, running_gateway
from support.repository.containers import DOCKER, ROOT, servers, services
from support.repository.metrics_docs import documented, exposed

DASHBOARD = json.loads((DOCKER / "grafana/dashboards/omnistage.json").read_text())


def test_prometheus_asks_every_server() -> None:
    parsed = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    (job,) = parsed["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{name}:8000" for name in servers()]}]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert services()["prometheus"]["ports"][0].endswith(":9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards/omnistage.yaml").read_text())[
        "providers"
    ]
    grafana = services()["grafana"]
    places = {volume.split(":")[0]: volume.split(":")[1] for volume in grafana["volumes"]}
    assert provider["options"]["path"] == places["./docker/grafana/dashboards"]
    assert places["./docker/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/omnistage.json"
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": source["uid"]}


def series_of(name: str, kind: str, labels: set[str]) -> dict[str, set[str]]:
    """The series of a metric, with their labels."""
    if kind != "histogram":
        return {name: labels}
    return {
        f"{name}_bucket": labels | {"le"},
        f"{name}_sum": labels,
        f"{name}_count": labels,
    }


# Every series that docs/metrics.md lists: tests hold it to the pages of servers.
SERIES = {
    series: labels
    for name, (kind, listed) in documented().items()
    for series, labels in series_of(name, kind, set(listed)).items()
}
METRIC = re.compile(r"\b(?:omnistage_|vllm:|process_)\w+")


def panels() -> list[dict[str, Any]]:
    """Those that show something; the others are headings."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard with its legend."""
    targets = [target for panel in panels() for target in panel["targets"]]
    return [(target["expr"], target["legendFormat"]) for target in targets]


def test_the_dashboard_is_what_its_script_makes() -> None:
    assert dashboard.FILE == DOCKER / "grafana/dashboards/omnistage.json"
    assert dashboard.FILE.read_text() == dashboard.text()


@pytest.mark.parametrize(("query", "legend"), queries())
def test_a_query_of_the_dashboard_names_metrics_and_labels_that_are_documented(
    query: str, legend: str
) -> None:
    metrics = METRIC.findall(query)
    assert metrics
    prometheus_adds = {"instance", "job"}
    asked = {word for found in re.findall(r"by \(([^)]*)\)", query) for word in found.split(", ")}
    matched = set(re.findall(r"[{,]\s*(\w+)\s*=~?", query))
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    for metric in metrics:
        assert metric in SERIES
        assert asked | matched | shown <= SERIES[metric] | prometheus_adds
    if asked:
        assert shown <= asked  # what is summed away cannot be shown


def test_the_dashboard_shows_every_metric_of_ours() -> None:
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for query, _ in queries()
        for name in METRIC.findall(query)
    }
    assert {name for name in documented() if name.startswith("omnistage_")} <= shown


def test_no_panel_of_the_dashboard_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        across = range(place["x"], place["x"] + place["w"])
        down = range(place["y"], place["y"] + place["h"])
        assert across.stop <= 24
        cells = {(x, y) for x in across for y in down}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_choice_of_servers_is_a_label_of_a_metric() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    metric, label = re.fullmatch(  # type: ignore[union-attr]
        r"label_values\((\w+), (\w+)\)", variable["query"]["query"]
    ).groups()
    assert metric in SERIES
    assert label == "instance"
    for query, _ in queries():
        assert query.count(f'instance=~"${variable["name"]}"') == len(METRIC.findall(query))


# Alerts

RULES = yaml.safe_load((DOCKER / "prometheus-rules.yml").read_text())["groups"][0]["rules"]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
TESTED_RULES = "tests/support/repository/prometheus_rules.yml"
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The series that a server exports."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI) as gateway:
        page = httpx.get(f"{gateway.url}/metrics").text
    listed = {name: kind for name, (kind, _) in exposed(page).items()}
    return {series for name, kind in listed.items() for series in series_of(name, kind, set())}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", "record"))
def test_an_alert_names_metrics_and_labels_that_a_server_exports(
    rule: dict[str, Any], exported: set[str]
) -> None:
    query = rule["expr"]
    if rule.get("alert") == "ServerDown":
        (job,) = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
        assert set(re.findall(r'job="(\w+)"', query)) == {job["job_name"]}
        return
    (metric,) = set(METRIC.findall(query))
    assert metric in exported
    groups = re.findall(r"by \(([^)]*)\)", query)
    grouped = {label for found in groups for label in found.split(", ")}
    matched = set(re.findall(r"[{,]\s*(\w+)=", query))
    labels = SERIES[metric] | {"instance"}
    assert grouped | matched <= labels
    shown = set(re.findall(r"\$labels\.(\w+)", str(rule.get("annotations"))))
    assert shown <= (grouped or labels)  # what is summed away cannot be shown


def test_the_alerts_are_those_of_the_page_for_operators() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| `([^`]*)` \|$", OPERATIONS, re.MULTILINE)
    assert dict(rows) == {name: rule["expr"] for name, rule in ALERTS.items()}
    assert len(rows) == len(ALERTS)


def test_prometheus_reads_the_rules_beside_its_configuration() -> None:
    parsed = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    volumes = services()["prometheus"]["volumes"]
    places = {Path(at.split(":")[0]).name: Path(at.split(":")[1]) for at in volumes}
    (rules,) = parsed["rule_files"]
    assert places[rules] == places["prometheus.yml"].parent / rules


def test_the_lines_of_the_dashboard_are_the_limits_of_the_alerts() -> None:
    for title, alert in (("First audio", "FirstAudioLate"), ("Stalls", "AudioStalls")):
        (panel,) = [one for one in panels() if one["title"] == title]
        *_, step = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert ALERTS[alert]["expr"].endswith(f" > {step['value']}")


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize(
    "words",
    [
        ["check", "config", "docker/prometheus.yml"],
        ["check", "rules", "docker/prometheus-rules.yml"],
        ["test", "rules", TESTED_RULES],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_promtool_accepts_the_rules_and_each_fires_when_it_should(words: list[str]) -> None:
    done = subprocess.run([str(PROMTOOL), *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_s_test_fires_every_alert() -> None:
    cases = yaml.safe_load((ROOT / TESTED_RULES).read_text())["tests"]
    fired = {
        case["alertname"]
        for one in cases
        for case in one.get("alert_rule_test", ())
        if case["exp_alerts"]
    }
    assert fired == ALERTS.keys()


def test_every_panel_has_a_sentence_for_operators() -> None:
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]

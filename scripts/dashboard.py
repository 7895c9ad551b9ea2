"""Grafana's dashboard of docs/metrics.md: `python scripts/dashboard.py` writes it anew.

Panels are given as queries and legends; where they stand and how they look follows from that.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "docker" / "grafana" / "dashboards" / "omnistage.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
SERVER = 'instance=~"$server"'
WIDTH, NUM_COLUMNS, HEIGHT, ROW_HEIGHT = 8, 3, 7, 1  # in Grafana's grid, which is 24 wide
CHANNEL = "source, target, channel"
QUANTILES = (0.5, 0.99)


class Query(NamedTuple):
    """What Prometheus is asked, and the name of each line."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """Lines in one unit of Grafana's."""

    title: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"


class Row(NamedTuple):
    """Panels below a heading."""

    title: str
    panels: Sequence[Panel]


def legend_of(labels: str) -> str:
    """The values of these labels."""
    return " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))


def now(metric: str, labels: str, note: str = "") -> Query:
    """A gauge, or a counter as it is."""
    return Query(f"{metric}{{{SERVER}}}", f"{legend_of(labels)} {note}".strip())


def total(metric: str, note: str) -> Query:
    """A gauge of all servers together."""
    return Query(f"sum({metric}{{{SERVER}}})", note)


def each_second(metric: str, labels: str, note: str = "") -> Query:
    """By how much a counter grows."""
    rate = f"sum by ({labels}) (rate({metric}{{{SERVER}}}[$__rate_interval]))"
    return Query(rate, f"{legend_of(labels)} {note}".strip())


def mean(dividend: str, divisor: str, labels: str) -> Query:
    """The growth of one counter over that of another."""
    above, below = each_second(dividend, labels), each_second(divisor, labels)
    return Query(f"{above.expression} / {below.expression}", f"{legend_of(labels)} mean")


def quantiles(metric: str, labels: str) -> list[Query]:
    """Of a histogram."""
    rates = f"sum by (le, {labels}) (rate({metric}_bucket{{{SERVER}}}[$__rate_interval]))"
    return [
        Query(f"histogram_quantile({share}, {rates})", f"{legend_of(labels)} p{share * 100:g}")
        for share in QUANTILES
    ]


def times(title: str, metric: str, labels: str) -> Panel:
    """A histogram of seconds."""
    return Panel(title, "s", quantiles(metric, labels))


def sizes(title: str, metric: str) -> Panel:
    """A histogram of counts of a stage."""
    average = mean(f"{metric}_sum", f"{metric}_count", "stage")
    return Panel(title, "none", [average, *quantiles(metric, "stage")[1:]])


def ours(name: str) -> str:
    """A metric of this server's."""
    return f"omnistage_{name}"


ROWS = (
    Row(
        "Requests",
        (
            Panel(
                "Stages that are ready",
                "none",
                [now(ours("stage_up"), "instance, stage, replica")],
                "stat",
            ),
            Panel(
                "Requests in the server",
                "none",
                [
                    total(ours("num_requests_running"), "with an output"),
                    total(ours("num_requests_waiting"), "waiting for the first"),
                ],
            ),
            Panel(
                "Restarts of stages and steps with a NaN",
                "none",
                [
                    now(ours("stage_restarts_total"), "instance, stage, replica", "restarts"),
                    now(ours("stage_nan_steps_total"), "instance, stage, replica", "NaN"),
                ],
            ),
            Panel(
                "Requests by how they ended",
                "reqps",
                [each_second(ours("requests_total"), "outcome, status")],
            ),
            Panel(
                "Requests by endpoint", "reqps", [each_second(ours("requests_total"), "endpoint")]
            ),
            Panel(
                "Answers of the stages",
                "reqps",
                [each_second(ours("answers_total"), "modality, outcome")],
            ),
            times("Whole answers", ours("e2e_request_latency_seconds"), "endpoint"),
            times("Wait before the stages", ours("request_wait_seconds"), "modality"),
            Panel(
                "Tokens a second",
                "none",
                [
                    each_second(ours("prompt_tokens_total"), "modality", "in"),
                    each_second(ours("generation_tokens_total"), "modality", "out"),
                ],
            ),
        ),
    ),
    Row(
        "Text, sound and pictures",
        (
            times("Time to the first text", ours("time_to_first_token_seconds"), "modality"),
            times("Time to the first sound", ours("time_to_first_audio_seconds"), "modality"),
            Panel("Real-time factor", "none", quantiles(ours("real_time_factor"), "modality")),
            times("Between packets of sound", ours("audio_gap_seconds"), "modality"),
            times("Stalls of an answer", ours("audio_stall_seconds"), "modality"),
            Panel(
                "Seconds of sound, and pictures, a second",
                "none",
                [
                    each_second(ours("audio_seconds_total"), "modality", "sound"),
                    each_second(ours("pictures_total"), "modality", "pictures"),
                ],
            ),
        ),
    ),
    Row(
        "Stages",
        (
            Panel(
                "Requests in the stages",
                "none",
                [
                    now(ours("stage_requests_running"), "instance, stage, replica", "running"),
                    now(
                        ours("stage_requests_waiting"),
                        "instance, stage, replica",
                        "waiting for a seat",
                    ),
                ],
            ),
            Panel(
                "Requests a second", "reqps", [each_second(ours("stage_requests_total"), "stage")]
            ),
            times("Time in a stage", ours("stage_request_seconds"), "stage"),
            Panel(
                "Age of what stages measured",
                "s",
                [now(ours("stage_metrics_age_seconds"), "instance, stage, replica")],
            ),
            Panel(
                "Memory",
                "bytes",
                [now("process_resident_memory_bytes", "instance, stage, replica")],
            ),
            Panel("CPUs in use", "none", [each_second("process_cpu_seconds_total", "stage")]),
        ),
    ),
    Row(
        "Channels",
        (
            Panel(
                "Chunks a second",
                "none",
                [
                    each_second(ours("channel_chunks_total"), CHANNEL, "sent"),
                    each_second(ours("channel_received_chunks_total"), CHANNEL, "received"),
                ],
            ),
            Panel("Bytes a second", "Bps", [each_second(ours("channel_bytes_total"), CHANNEL)]),
            Panel(
                "Wait of a chunk",
                "s",
                [
                    mean(
                        ours("channel_wait_seconds_total"),
                        ours("channel_received_chunks_total"),
                        CHANNEL,
                    )
                ],
            ),
            Panel(
                "Seconds of waits for credit or room, a second",
                "none",
                [each_second(ours("channel_backlog_seconds_total"), CHANNEL)],
            ),
            Panel(
                "Chunks that wait for credit or room",
                "none",
                [now(ours("channel_backlog_chunks"), f"instance, {CHANNEL}")],
            ),
            Panel(
                "Rings in use",
                "percentunit",
                [
                    Query(
                        f"{ours('ring_used_bytes')}{{{SERVER}}} / "
                        f"{ours('ring_size_bytes')}{{{SERVER}}}",
                        legend_of(f"instance, {CHANNEL}"),
                    )
                ],
            ),
        ),
    ),
    Row(
        "Engines of vLLM",
        (
            Panel(
                "Requests in the engines",
                "none",
                [
                    now("vllm:num_requests_running", "instance, stage, replica", "running"),
                    now("vllm:num_requests_waiting", "instance, stage, replica", "waiting"),
                ],
            ),
            Panel(
                "KV cache in use",
                "percentunit",
                [now("vllm:kv_cache_usage_perc", "instance, stage, replica")],
            ),
            Panel(
                "Tokens of the engines a second",
                "none",
                [
                    each_second("vllm:prompt_tokens_total", "stage", "in"),
                    each_second("vllm:generation_tokens_total", "stage", "out"),
                ],
            ),
            times("Wait in the queue", "vllm:request_queue_time_seconds", "stage"),
            times("Prefill", "vllm:request_prefill_time_seconds", "stage"),
            times("Between tokens", "vllm:inter_token_latency_seconds", "stage"),
        ),
    ),
    Row(
        "Diffusion and vocoders",
        (
            times("Time of an image", ours("image_seconds"), "stage"),
            times("Until the first step", ours("first_step_seconds"), "stage"),
            sizes("Steps of an image", ours("image_steps")),
            sizes("Requests in a denoising step", ours("denoising_batch_requests")),
            sizes("Requests in a call of the side lane", ours("side_lane_batch_requests")),
            Panel(
                "Embedding cache",
                "none",
                [
                    each_second(ours("embedding_cache_hits_total"), "stage", "hits"),
                    each_second(ours("embedding_cache_misses_total"), "stage", "misses"),
                ],
            ),
            Panel(
                "Size of the embedding cache",
                "bytes",
                [now(ours("embedding_cache_bytes"), "instance, stage, replica")],
            ),
            times("Decode of a batch", ours("decode_seconds"), "stage"),
            times("Wait for a decode", ours("decode_wait_seconds"), "stage"),
            sizes("Requests in a decode", ours("decoder_batch_requests")),
            Panel("Frames a second", "none", [each_second(ours("decoded_frames_total"), "stage")]),
        ),
    ),
    Row(
        "GPUs",
        (
            Panel(
                "Memory in use",
                "bytes",
                [
                    now(ours("gpu_memory_used_bytes"), "instance, gpu, stage, replica"),
                    now(ours("gpu_memory_size_bytes"), "instance, gpu, stage, replica", "of"),
                ],
            ),
            Panel(
                "Use",
                "percentunit",
                [now(ours("gpu_utilization_ratio"), "instance, gpu, stage, replica")],
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """As Grafana reads it."""
    variable = {
        "name": "server",
        "label": "Server",
        "type": "query",
        "datasource": SOURCE,
        "query": {
            "query": "label_values(omnistage_num_requests_running, instance)",
            "refId": "A",
        },
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }
    return {
        "uid": "omnistage",
        "title": "Omnistage",
        "schemaVersion": 41,
        "version": 1,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [variable]},
        "panels": [{"id": number, **one} for number, one in enumerate(placed(), 1)],
    }


def placed() -> Iterator[dict[str, Any]]:
    """All rows and panels with their places."""
    top = 0
    for row in ROWS:
        place = {"x": 0, "y": top, "w": WIDTH * NUM_COLUMNS, "h": ROW_HEIGHT}
        yield {"title": row.title, "type": "row", "gridPos": place, "collapsed": False}
        top += ROW_HEIGHT
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, NUM_COLUMNS)
            yield drawn(panel, column * WIDTH, top + line * HEIGHT)
        top += -(-len(row.panels) // NUM_COLUMNS) * HEIGHT


def drawn(panel: Panel, left: int, top: int) -> dict[str, Any]:
    """One panel as Grafana reads it."""
    return {
        "title": panel.title,
        "type": panel.kind,
        "gridPos": {"x": left, "y": top, "w": WIDTH, "h": HEIGHT},
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": letter, "expr": query.expression, "legendFormat": query.legend}
            for letter, query in zip("ABCDEFGH", panel.queries, strict=False)
        ],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())

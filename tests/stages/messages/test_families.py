"""Families of metrics, from a registry to a page."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from support.repository.metrics_docs import families_in

from omnistage.stages.messages.families import families_of, page

LABELS = {"stage": "talker", "replica": "0"}
ODD = 'a"b\\c\nd'


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("sent", "What was sent.", ["kind"], registry=registry).labels(ODD).inc(3)
    Gauge("used", "What is used:\nnow.", registry=registry).set(0.5)
    Histogram("took_seconds", "How long.", registry=registry, buckets=(1, 2)).observe(1.5)
    return registry


def test_every_sample_gets_the_labels_and_keeps_its_own(registry: CollectorRegistry) -> None:
    sent, used, took = families_in(page(families_of(registry, LABELS)))
    assert [family.type for family in (sent, used, took)] == ["counter", "gauge", "histogram"]
    assert [sample.labels for sample in sent.samples] == [{**LABELS, "kind": ODD}]
    assert [sample.value for sample in sent.samples] == [3.0]
    assert used.documentation == "What is used:\nnow."
    assert [(one.name, one.labels.get("le"), one.value) for one in took.samples] == [
        ("took_seconds_bucket", "1.0", 0.0),
        ("took_seconds_bucket", "2.0", 1.0),
        ("took_seconds_bucket", "+Inf", 1.0),
        ("took_seconds_count", None, 1.0),
        ("took_seconds_sum", None, 1.5),
    ]
    assert all(LABELS.items() <= one.labels.items() for one in took.samples)


def test_a_label_of_the_same_name_is_kept_under_another() -> None:
    """As vLLM's stages of a transfer, which are no stages of ours."""
    registry = CollectorRegistry()
    Gauge("fetching", "By stage.", ["stage"], registry=registry).labels("in_progress").set(1)
    ((sample,),) = (one.samples for one in families_in(page(families_of(registry, LABELS))))
    assert sample.labels == {**LABELS, "exported_stage": "in_progress"}


def test_a_name_has_one_heading_and_its_samples_stand_together(
    registry: CollectorRegistry,
) -> None:
    names = ("thinker", "talker")
    families = [one for name in names for one in families_of(registry, {"stage": name})]
    text = page(families)
    assert text.count("# TYPE used gauge\n") == text.count("# HELP used ") == 1
    read = {family.name: family.samples for family in families_in(text)}
    assert [one.labels["stage"] for one in read["used"]] == ["thinker", "talker"]
    assert sum(one.num_characters for one in families) > len(text)


def test_what_is_measured_is_left_as_it_was(registry: CollectorRegistry) -> None:
    before = page(families_of(registry, {}))
    page(families_of(registry, LABELS))
    assert page(families_of(registry, {})) == before

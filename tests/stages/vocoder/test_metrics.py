"""What a decoder counts."""

from support.repository.metrics_docs import documented, exposed, families_in, rendered

from omnistage.stages.vocoder.metrics import DecoderMetrics


def test_batches_frames_and_waits_are_counted() -> None:
    metrics = DecoderMetrics()
    for wait_s in (0.5, 1.5):
        metrics.begun(wait_s)
    metrics.decoded(num_requests=2, num_frames=50, seconds=0.25)
    samples = [one for family in families_in(rendered(metrics.registry)) for one in family.samples]
    values = {one.name: one.value for one in samples if "le" not in one.labels}
    assert values == {
        "omnistage_decoder_batch_requests_count": 1,
        "omnistage_decoder_batch_requests_sum": 2,
        "omnistage_decode_seconds_count": 1,
        "omnistage_decode_seconds_sum": 0.25,
        "omnistage_decode_wait_seconds_count": 2,
        "omnistage_decode_wait_seconds_sum": 2.0,
        "omnistage_decoded_frames_total": 50,
    }


def test_the_documentation_lists_them() -> None:
    assert exposed(rendered(DecoderMetrics().registry)) == documented("Vocoders")

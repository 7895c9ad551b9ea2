"""The form of the samples that leave the graph: s16le, 24 kHz, mono."""

SAMPLE_RATE_HZ = 24_000
SAMPLE_BYTES = 2

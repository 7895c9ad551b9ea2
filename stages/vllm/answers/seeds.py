"""Seeds of a stage's own, which follow from a request's."""

import zlib


def derived_seed(seed: int, stage: str) -> int:
    """Return a stage's own seed from the request's."""
    return zlib.crc32(f"{seed}/{stage}".encode())

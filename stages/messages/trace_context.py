"""A request's place in a trace, as W3C's header `traceparent` says it.

The gateway and the stages name a stage's span alike without asking each other, so that what an
engine exports while the request runs lies below the span that the gateway exports at its end.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Self

HEADER = "traceparent"
FORMAT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
SAMPLED = 1
NO_VERSION = "ff"
VERSION = "00"  # the one that we write; in what follows it, later ones have the same first fields


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span: its trace, its own id, both in hexadecimal, and whether it is recorded."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def begin(cls) -> Self:
        """The first span of a new trace."""
        return cls(os.urandom(16).hex(), os.urandom(8).hex())

    @classmethod
    def parse(cls, header: str | None) -> Self | None:
        """The span that a header names; None without one, and for a header that is not valid."""
        found = FORMAT.fullmatch((header or "").strip())
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        is_wrong = version == NO_VERSION or (version == VERSION and more is not None)
        if is_wrong or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & SAMPLED))

    @property
    def header(self) -> str:
        """Returns the header of the wire."""
        return f"{VERSION}-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"

    def child(self) -> Self:
        """A new span below this one."""
        return type(self)(self.trace_id, os.urandom(8).hex(), self.is_sampled)

    def named(self, name: str) -> Self:
        """The span of this name below this one: the same in every process."""
        whole = f"{self.trace_id}-{self.span_id}-{name}".encode()
        span_id = hashlib.blake2b(whole, digest_size=8).hexdigest()
        return type(self)(self.trace_id, span_id, self.is_sampled)

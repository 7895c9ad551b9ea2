"""Traces as torch writes them, and a server whose stages write them."""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.bench.fake_openai import JSON, FakeOpenAI, Reply

from omnistage.bench.profile.figures import Profile, Recorded, profile_of
from omnistage.bench.profile.traces import ProfileTrace

EPOCH_NS = 1_700_000_000_000_000_000
STREAM = 7
Event = dict[str, Any]


def run(name: str, start: float, length: float, cat: str = "kernel", **more: Any) -> Event:
    """Microseconds; on a stream of a GPU unless `more` says another thread."""
    at: Event = {"pid": 0, "tid": STREAM, "ts": start, "dur": length}
    return {"ph": "X", "cat": cat, "name": name, "args": {"stream": STREAM}, **at, **more}


def span(start: float, end: float) -> Event:
    """When the process recorded."""
    more: Event = {"pid": "Spans", "tid": "PyTorch Profiler"}
    return run("PyTorch Profiler (0)", start, end - start, "ProfileTrace", **more)


def named(what: str, tid: object, pid: object = 0, **arguments: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0.0, "args": arguments}


def content(events: Iterable[Event], base_ns: int = EPOCH_NS) -> bytes:
    file = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns, "traceEvents": list(events)}
    return json.dumps(file).encode()


def profile_of_events(events: Mapping[str, list[Event]]) -> Profile:
    """The figures of stages that have recorded these."""
    recorded = []
    for stage, own in events.items():
        one = Recorded(stage)
        one.read(ProfileTrace(content(own), EPOCH_NS, stage))
        recorded.append(one)
    return profile_of(recorded, "all.json.gz")


def write(path: Path, events: Iterable[Event], base_ns: int = EPOCH_NS) -> Path:
    path.write_bytes(gzip.compress(content(events, base_ns)))
    return path


def read(path: Path) -> list[Event]:
    """The events of a merged trace."""
    with gzip.open(path) as file:
        events: list[Event] = json.load(file)["traceEvents"]
    return events


@dataclass
class ProfiledServer(FakeOpenAI):
    """Answers chats at once, and profiles with what it is given.

    `stopped`: what each stage says when a profile ends. `refusals`: the statuses and messages with
    which the first commands are refused, by their path; 0 lets one pass.
    """

    stopped: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()  # stages that take no profile
    health: int = 200  # the status of /health
    refusals: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    admin_keys: set[str | None] = field(default_factory=set)

    def reply(self, path: str, content: bytes, key: str | None = None) -> Reply:
        if path == "/health":
            stages: dict[str, Any] = {name: {} for name in (*self.stopped, *self.others)}
            return self._said(self.health, {"stages": stages})
        if not path.startswith("/admin/profile/"):
            return super().reply(path, content, key)
        command = path.rsplit("/", 1)[1]
        self.told.append(f"{command} after {len(self.bodies)}")
        self.admin_keys.add(key)
        if refusals := self.refusals.get(command):
            status, message = refusals.pop(0)
            if status:
                return self._said(status, {"error": {"message": message}})
        return self._said(200, {"stages": self.stopped})

    def _said(self, status: int, body: Any) -> Reply:
        return Reply(status, JSON, [(0.0, json.dumps(body).encode())])

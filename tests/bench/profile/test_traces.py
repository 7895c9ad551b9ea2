"""Traces are read whole, on one clock, and whatever torch puts into them."""

import gzip
import threading
from pathlib import Path

import pytest
from support.bench.profiles import EPOCH_NS, content, run, write

from omnistage.bench.profile import traces
from omnistage.bench.profile.traces import ProfileTrace, TraceError, read_trace


def test_events_of_traces_with_other_bases_are_on_one_clock() -> None:
    for base_ns in (EPOCH_NS, EPOCH_NS - 5_000, EPOCH_NS + 2_500):
        start = (EPOCH_NS - base_ns) / 1e3 + 40.25
        (event,) = ProfileTrace(content([run("a", start, 3.0)], base_ns), EPOCH_NS, "a")
        assert event.ts == pytest.approx(40.25)
        assert event.dur == 3.0


def test_a_base_of_zero_is_the_hosts_clock() -> None:
    (event,) = ProfileTrace(content([run("a", EPOCH_NS / 1e3 + 8.0, 3.0)], 0), EPOCH_NS, "a")
    assert event.ts == pytest.approx(8.0, abs=0.5)  # what a double has left of microseconds


def test_what_is_no_event_is_left_out_and_counted() -> None:
    odd = [{"name": "no phase"}, {"ph": "X", "ts": "soon"}, {"ph": "Z", "colour": "red"}]
    trace = ProfileTrace(content([*odd, run("a", 1.0, 1.0)]), EPOCH_NS, "a")
    assert [event.ph for event in trace] == ["Z", "X"]
    assert trace.num_skipped == 2


def test_numbers_and_names_that_are_none_are_mended() -> None:
    broken = content([run("a", 1.0, 1.0)]).replace(b'{"stream": 7}', b'{"blocks": inf, "b": -nan}')
    broken = broken.replace(b'"name": "a"', b'"name": "nan: inf\xff"')
    (event,) = ProfileTrace(broken, EPOCH_NS, "a")
    assert event.name == "nan: inf\ufffd"
    assert (event.argument("blocks"), event.argument("b"), event.argument("c")) == (None,) * 3


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"events": []}')
    with pytest.raises(TraceError, match=r"a\.json is no trace of torch's profiler"):
        read_trace(path, EPOCH_NS, 0)
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "b.json", EPOCH_NS, 0)


@pytest.mark.parametrize("num_bytes", [0, 10, 60])
def test_a_file_that_is_written_slowly_is_awaited(
    num_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "POLL_S", 0.01)
    whole = gzip.compress(content([run("a", 1.0, 1.0)]))
    path = tmp_path / "a.json.gz"
    path.write_bytes(whole[:num_bytes])
    with pytest.raises(TraceError, match=r"was not whole after 0\.05 s"):
        read_trace(path, EPOCH_NS, 0.05)
    later = threading.Timer(0.1, path.write_bytes, (whole,))
    later.start()
    assert len(list(read_trace(path, EPOCH_NS, 30))) == 1
    later.join()


def test_a_file_that_is_not_compressed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt.trace.json"
    path.write_bytes(gzip.decompress(write(tmp_path / "b.gz", [run("a", 1.0, 1.0)]).read_bytes()))
    assert [event.name for event in read_trace(path, EPOCH_NS, 0)] == ["a"]

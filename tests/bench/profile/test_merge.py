"""One file of several processes' traces."""

from pathlib import Path

import pytest
from support.bench.profiles import EPOCH_NS, Event, content, named, read, run

from omnistage.bench.profile import merge
from omnistage.bench.profile.merge import MergedTrace
from omnistage.bench.profile.traces import ProfileTrace, TraceError

THREAD: Event = {"pid": 4321, "tid": 99}


def merged(path: Path, **events: list[Event]) -> list[Event]:
    with MergedTrace(path, EPOCH_NS) as target:
        for name, own in events.items():
            for _ in target.passed(name, ProfileTrace(content(own), EPOCH_NS, name)):
                pass
    return read(path)


def broken(path: Path) -> None:
    """A second trace cannot be read."""
    with MergedTrace(path, EPOCH_NS) as target:
        list(target.passed("one", ProfileTrace(content([run("k", 0.0, 1.0)]), EPOCH_NS, "one")))
        list(target.passed("cut", ProfileTrace(b"{", EPOCH_NS, "cut")))


def test_processes_have_the_stages_names_and_rows_of_their_own(tmp_path: Path) -> None:
    own = [
        named("process_labels", 0, labels="GPU 0"),
        named("thread_name", 7, name="stream 7 "),
        named("thread_name", 99, 4321, name="thread 99 (python)"),
        run("matmul", 5.0, 2.0),
        run("aten::mm", 1.0, 2.0, "cpu_op", **THREAD),
    ]
    events = merged(tmp_path / "a.json.gz", thinker=own, talker=own)
    names = {one["pid"]: one["args"] for one in events if one["name"] == "process_name"}
    assert names == {1: {"name": "thinker"}, 2: {"name": "talker"}}
    threads = {
        (one["pid"], one["tid"]): one["args"] for one in events if one["name"] == "thread_name"
    }
    for pid in names:
        (kernel,) = [one for one in events if one["name"] == "matmul" and one["pid"] == pid]
        (operator,) = [one for one in events if one["name"] == "aten::mm" and one["pid"] == pid]
        assert threads[pid, kernel["tid"]] == {"name": "GPU 0 stream 7"}
        assert threads[pid, operator["tid"]] == {"name": "thread 99 (python)"}
        assert kernel["args"] == {"stream": 7}
        assert (kernel["ts"], kernel["dur"]) == (5.0, 2.0)
    order = {
        (one["pid"], one["tid"]): one["args"]["sort_index"]
        for one in events
        if one["name"] == "thread_sort_index"
    }
    assert order[1, kernel["tid"]] < order[1, operator["tid"]]  # streams of a GPU come first


def test_arrows_stay_within_their_process(tmp_path: Path) -> None:
    ends: list[Event] = [
        {"ph": phase, "id": 3, "pid": 0, "tid": 7, "ts": 1.0, "cat": "ac2g", "name": "ac2g"}
        for phase in "sf"
    ]
    events = merged(tmp_path / "a.json.gz", thinker=ends, talker=ends)
    found: dict[int, list[int]] = {one["pid"]: [] for one in events if one["ph"] == "s"}
    for one in events:
        if one["ph"] in "sf":
            found[one["pid"]].append(one["id"])
    assert found[1][0] == found[1][1] != found[2][0] == found[2][1]


def test_an_error_leaves_the_file_as_it_was_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    for before in ([], [path]):
        with pytest.raises(TraceError, match="cut is no trace"):
            broken(path)
        assert list(tmp_path.iterdir()) == before
        kept = merged(path, whole=[run("kept", 0.0, 1.0)])
    assert list(tmp_path.iterdir()) == [path]
    assert "kept" in {one["name"] for one in kept}


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
def test_all_events_are_there_however_many_are_written_at_once(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "WRITTEN_AT_ONCE", at_once)
    many = [run(f"k{number}", float(number), 0.5) for number in range(7)]
    events = merged(tmp_path / "a.json.gz", one=many, none=[])
    assert [one["name"] for one in events if one["ph"] == "X"] == [one["name"] for one in many]

"""Counts shared by two processes."""

from pathlib import Path

from omnistage.stages.worker.ledger import Held, Ledger, Ledgers, Seen, lane_ledger


def test_what_one_writes_the_other_reads(tmp_path: Path) -> None:
    writer, reader = Ledger(tmp_path / "held"), Ledger(tmp_path / "held")
    writer.write(Held.ROWS, 3)
    writer.write(Held.BLOCKS, 1 << 40)
    assert reader.read() == {
        "rows": 3,
        "late_inputs": 0,
        "blocks": 1 << 40,
        "streams": 0,
        "credits": 0,
        "late_rows": 0,
        "kv_bytes": 0,
    }
    writer.write(Seen.WAITING, 2)
    assert reader.read_seen() == {"waiting": 2, "nan_steps": 0}
    reader.clear()
    assert not any(writer.read().values())
    assert not any(writer.read_seen().values())
    writer.close()
    reader.close()


def test_what_the_lanes_of_a_stage_hold_is_added_up(tmp_path: Path) -> None:
    path = tmp_path / "talker.held"
    lanes = [Ledger(lane_ledger(path, lane)) for lane in range(3)]
    together = Ledgers(path, 3)
    for lane, ledger in enumerate(lanes):
        ledger.write(Held.ROWS, 2 + lane)
        ledger.write(Seen.NAN_STEPS, 10 * lane)
    assert together.read()["rows"] == 9
    assert together.read_seen() == {"waiting": 0, "nan_steps": 30}
    together.clear()
    assert not any(count for ledger in lanes for count in ledger.read().values())
    together.close()
    for ledger in lanes:
        ledger.close()

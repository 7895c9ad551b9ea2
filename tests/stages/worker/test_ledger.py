"""Counts shared by two processes."""

from pathlib import Path

from omnistage.stages.worker.ledger import Held, Ledger, Seen


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
    }
    writer.write(Seen.WAITING, 2)
    assert reader.read_seen() == {"waiting": 2, "nan_steps": 0}
    reader.clear()
    assert not any(writer.read().values())
    assert not any(writer.read_seen().values())
    writer.close()
    reader.close()

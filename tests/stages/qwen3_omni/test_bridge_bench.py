"""The bench of the bridge runs both engines."""

from pathlib import Path

import pytest

from omnistage.stages.qwen3_omni import bridge_bench

pytestmark = pytest.mark.engine


def test_both_engines_are_measured(
    tiny_checkpoint: Path, cpu_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_bench, "SHORT", 4)
    monkeypatch.setattr(bridge_bench, "LONG", 40)
    monkeypatch.setattr(bridge_bench, "REPEATS", 1)
    engine = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 128,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "kv_cache_memory_bytes": 16 << 20,
    }
    told: list[tuple[str, int]] = []
    steps = bridge_bench.measure(
        str(tiny_checkpoint), engine, [2, 4], [1, 2], lambda *one: told.append(one[:2])
    )
    assert list(steps) == [1, 2]
    assert told == [("without", 1), ("without", 2), ("with", 1), ("with", 2)]
    assert all(without > 0 and within > 0 for without, within in steps.values())

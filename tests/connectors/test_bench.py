"""The benchmark of the connectors runs and leaves nothing."""

from pathlib import Path

import pytest

from omnistage.connectors import bench, sweep


@pytest.mark.parametrize("connector", bench.CONNECTORS)
def test_figures_of_a_size(connector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MAX_CHUNKS", 50)
    monkeypatch.setattr(
        bench, "make_run_directory", lambda: sweep.make_run_directory(tmp_path, tmp_path)
    )
    small, large = bench.run_bench(connector, {"100 B": 100, "1 MB": 1_000_000})
    assert (small.size, large.size) == ("100 B", "1 MB")
    for figures in (small, large):
        assert 0 < figures.one_way_p50_us <= figures.one_way_p99_us
        assert figures.gb_per_s > 0
        assert figures.stream_gb_per_s > 0
        assert figures.memcpy_ratio > 0
    assert not list(tmp_path.iterdir())

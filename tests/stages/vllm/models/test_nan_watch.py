"""Steps with a NaN among their logits are counted, in the file that the stage's process reads."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from omnistage.stages.vllm.models.nan_watch import NanWatch
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.worker.ledger import Ledger


def test_a_step_counts_once_however_many_rows_have_a_nan(tmp_path: Path) -> None:
    watch = NanWatch(tmp_path / "held", torch.device("cpu"))
    ledger = Ledger(tmp_path / "held")
    good, bad = torch.zeros(4, 10), torch.zeros(4, 10)
    bad[1, 3] = bad[2, 0] = float("nan")
    told = []
    for logits in (good, bad, good, bad, bad, good, good):
        watch.look(logits)
        told.append(ledger.read_seen()["nan_steps"])
    assert told == [0, 0, 1, 1, 2, 3, 3]  # each a step late


def test_infinite_logits_are_no_nan(tmp_path: Path) -> None:
    watch = NanWatch(tmp_path / "held", torch.device("cpu"))
    for _ in range(2):
        watch.look(torch.tensor([[float("-inf"), 0.0], [float("-inf"), float("-inf")]]))
    assert Ledger(tmp_path / "held").read_seen()["nan_steps"] == 0


def test_only_an_engine_with_a_ledger_is_watched_in_that_of_its_lane(tmp_path: Path) -> None:
    def config(ledger: str) -> Any:
        extra = BridgeConfig(ledger=ledger).to_config()
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
            parallel_config=SimpleNamespace(data_parallel_index=1),
        )

    device = torch.device("cpu")
    assert NanWatch.of_engine(config(""), device) is None
    assert NanWatch.of_engine(config(str(tmp_path / "held")), device) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["held.1"]  # its own lane's
    assert NanWatch.of_engine(SimpleNamespace(kv_transfer_config=None), device) is None
    assert NanWatch.of_engine(config(str(tmp_path / "held")), device) is not None

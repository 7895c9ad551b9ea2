"""Counts the steps whose logits have a NaN: tokens sampled from them mean nothing."""

from pathlib import Path

import torch
from vllm.config import VllmConfig

from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.ranks import is_first_of_equals, own_lane
from omnistage.stages.worker.ledger import Ledger, Seen, lane_ledger


class NanWatch:
    """A count on the device that reaches the engine's ledger without a wait, one step late."""

    def __init__(self, ledger: Path, device: torch.device) -> None:
        self._ledger = Ledger(ledger)
        is_cuda = device.type == "cuda"
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._host = torch.zeros((), dtype=torch.int64, device="cpu", pin_memory=is_cuda)
        self._told = 0

    @classmethod
    def of_engine(cls, config: VllmConfig, device: torch.device) -> "NanWatch | None":
        """The watch of an engine with our connector, in one of its ranks; None without a ledger."""
        transfer = config.kv_transfer_config
        if transfer is None or not is_first_of_equals():
            return None
        ledger = BridgeConfig.from_config(transfer.kv_connector_extra_config).ledger
        return cls(lane_ledger(Path(ledger), own_lane(config)), device) if ledger else None

    def look(self, logits: torch.Tensor) -> None:
        """Look at a step's logits [n, vocabulary]; a row's largest is NaN if any of it is."""
        found = int(self._host)  # what the copy of an earlier step brought
        if found != self._told:
            self._ledger.write(Seen.NAN_STEPS, found)
            self._told = found
        self._count += logits.amax(-1).isnan().any()
        self._host.copy_(self._count, non_blocking=True)

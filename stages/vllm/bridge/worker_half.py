"""The connector's half beside the model: writes a step's data before the forward, takes results.

Copies in both directions go through pinned memory (transfer.py): no step waits for the device.
"""

import numpy as np
import torch

from omnistage.stages.vllm.bridge.exporter import Exported, Exporter
from omnistage.stages.vllm.bridge.rows import Longs
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.ranks import RankCheck
from omnistage.stages.vllm.step.step import StepMeta
from omnistage.stages.vllm.step.step_table import StepTable
from omnistage.stages.vllm.step.transfer import to_device


class WorkerHalf:
    """Moves one step's data between host and device."""

    def __init__(
        self,
        table: StepTable,
        num_slots: int,
        exporter: Exporter | None,
        check: RankCheck | None = None,
    ) -> None:
        """`exporter`: in the rank that exports. `check`: in all that have the same results."""
        self._table = table
        self._exporter = exporter
        self._check = check
        self._is_cuda = table.device.type == "cuda"
        table.tok_of_slot = torch.zeros(num_slots, dtype=torch.int64, device=table.device)
        if table.on_ready is not None:
            table.on_ready()

    def before_forward(self, meta: StepMeta) -> None:
        """Put the step into the table."""
        table = self._table
        if meta.started and table.on_start is not None:
            table.on_start(meta.started)
        if meta.columns is None:
            self._export(meta)  # before vLLM 0.32 a step without tokens has no wait_for_save
            return
        if meta.replays:
            self._replay(meta)
        table.write(to_device(meta.columns, table.device))
        table.num_decodes = meta.num_decodes
        if meta.hidden is not None:
            table.take_rows(to_device(meta.hidden, table.device))

    def after_forward(self, meta: StepMeta) -> None:
        """Start the way out of this step's results."""
        if meta.columns is not None:
            self._export(meta)
            if self._check is not None and meta.num_decodes:
                assert self._table.export is not None
                self._check.look(self._table.export[1 : len(meta.columns) + 1])

    def _replay(self, meta: StepMeta) -> None:
        """Rows that are kept need not wait for the forward."""
        if self._exporter is not None:
            nothing = np.zeros(0, np.int32)
            self._exporter.put(
                Exported(
                    nothing,
                    nothing,
                    None,
                    None,
                    meta.started,
                    meta.finished,
                    replays=meta.replays,
                    accepted=meta.accepted,
                )
            )

    def _export(self, meta: StepMeta) -> None:
        if self._exporter is None:
            return
        exported = self._exported(meta)
        if exported is not None:
            self._exporter.put(exported)

    def _exported(self, meta: StepMeta) -> Exported | None:
        empty = np.zeros(0, np.int32)
        started, finished, accepted = meta.started, meta.finished, meta.accepted
        if meta.replays:
            started, finished, accepted = [], [], None  # they were told before the forward
        if meta.columns is None or (meta.export is None and meta.num_decodes == 0):
            if not started and not finished and accepted is None:
                return None
            return Exported(empty, empty, None, None, started, finished, accepted=accepted)
        if meta.export is not None:
            index, positions = meta.export, meta.export_positions
            assert positions is not None
        else:
            index = np.flatnonzero(meta.columns[:, step.FRAME] >= 0)
            positions = meta.columns[index, step.FRAME]
        values = self._values(meta, index, len(meta.columns))
        ready = None
        if self._is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            ready = torch.cuda.Event(blocking=True)
            ready.record()
            values = host
        rows = meta.columns[index, step.ROW]
        places = meta.export_places
        return Exported(
            rows,
            positions,
            values,
            ready,
            started,
            finished,
            places,
            num_held=meta.num_held,
            accepted=accepted,
        )

    def _values(self, meta: StepMeta, index: Longs, num_lines: int) -> torch.Tensor:
        """Returns what leaves of a step: in one of decodes alone every line, in order, with no
        index.

        On a CPU it is a copy: the next step writes the table while the exporter reads.
        """
        export = self._table.export
        assert export is not None
        if len(index) < num_lines or meta.num_held:  # what is held comes last
            return export[to_device(index + 1, export.device)]
        values = export[1 : num_lines + 1]
        return values if self._is_cuda else values.clone()

    def shutdown(self) -> None:
        """Send what is left and stop the exporter."""
        if self._exporter is not None:
            self._exporter.close()

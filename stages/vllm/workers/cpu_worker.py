"""vLLM's CPU worker with what it lacks: the engine argument `worker_cls`.

Seeds hold for prompts in pieces, ranks can be lanes and a pipeline, the segments that they share
are noted, and ranks that wait leave the cores to others.
"""

import os

from vllm.distributed.parallel_state import get_dp_group, get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker

from omnistage.connectors.segments import note_segments
from omnistage.stages.vllm.workers.lane_communicator import LaneCommunicator
from omnistage.stages.vllm.workers.seeds import Spare, kept_tokens_only

GROUPS = ("tp", "pp")  # those whose ranks share segments
NICENESS = 10


def give_way() -> None:
    """Let others have the cores first, for as long as this thread lives.

    vLLM's ranks spin while they wait for orders, also on the core of the engine that gives them.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


class SeededCPUWorker(CPUWorker):
    """A worker like vLLM's; its V2 runner needs no help with seeds: it has no generators."""

    def init_device(self) -> None:
        """Starts like vLLM; it names the segments after the place where its ranks meet."""
        meeting = self.distributed_init_method.split(":")[-1].rpartition("/")[2]
        if self.parallel_config.world_size > 1:
            give_way()
            for group in GROUPS:
                note_segments(f"{meeting}-{group}:")
        super().init_device()
        self._spare = Spare()
        lanes = get_dp_group()
        if lanes.world_size > 1:
            lanes.device_communicator = LaneCommunicator.of(lanes)

    def determine_available_memory(self) -> int:
        """Measures like vLLM; a later pipeline rank gets the buffers that only a profile run
        makes.
        """
        available: int = super().determine_available_memory()
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
            )
        return available

    def sample_tokens(self, grammar_output: object) -> object:
        """Samples like vLLM, after each forward."""
        if self.use_v2_model_runner:
            return super().sample_tokens(grammar_output)
        runner = self.model_runner
        is_dropped = runner.discard_request_mask.np[: runner.input_batch.num_reqs]
        with kept_tokens_only(runner.input_batch.generators, is_dropped, self._spare):
            return super().sample_tokens(grammar_output)

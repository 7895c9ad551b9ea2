"""vLLM's CPU worker, whose seeds hold for prompts in pieces: the engine argument `worker_cls`."""

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from omnistage.stages.vllm.seeds import Spare, kept_tokens_only


class SeededCPUWorker(CPUWorker):
    """As vLLM's; its V2 runner needs no help: it has no generators."""

    def init_device(self) -> None:
        """As vLLM's."""
        super().init_device()
        self._spare = Spare()

    def sample_tokens(self, grammar_output: Any) -> Any:
        """As vLLM's, after each forward."""
        if self.use_v2_model_runner:
            return super().sample_tokens(grammar_output)
        runner = self.model_runner
        is_dropped = runner.discard_request_mask.np[: runner.input_batch.num_reqs]
        with kept_tokens_only(runner.input_batch.generators, is_dropped, self._spare):
            return super().sample_tokens(grammar_output)

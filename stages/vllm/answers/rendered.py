"""An engine that shows each prompt, as vLLM's serving classes have rendered it, to its request."""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.vllm.answers.encoder_room import check_each
from omnistage.stages.vllm.answers.truncation import take_over
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.grammars.grammars import JudgedLLM
from omnistage.stages.vllm.step.request_options import RequestOptions

Rendered = Callable[[JsonMap], RequestOptions | None]


def check_draft_sampling(sampling: SamplingParams, config: VllmConfig) -> None:
    """Raise ValueError for a sampling that can end an engine which drafts on a CPU.

    There vLLM 0.32 spreads a request's `top_k` over its drafts into a copy and reads memory that
    nothing was written to.
    """
    if sampling.top_k > 0 and config.speculative_config and current_platform.is_cpu():
        raise ValueError("top_k is not supported on a CPU by a stage with speculative_config")


class RenderedLLM(JudgedLLM):
    """An AsyncLLM whose bridge gets what a request's entry of `rendered` returns for its prompt.

    What is not computed has no rows: without a row cache, a prompt whose rows are exported is not
    read from the prefix cache.
    """

    rendered: dict[str, Rendered]
    has_row_cache: bool = False

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Generates like AsyncLLM, with our part of `extra_args` added."""
        take_over(sampling_params)
        check_draft_sampling(sampling_params, self.vllm_config)
        if isinstance(prompt, Mapping) and prompt.get("mm_placeholders"):
            check_each(prompt["mm_placeholders"], self.input_processor.mm_encoder_cache_size)
        extra = sampling_params.extra_args or {}
        on_rendered = self.rendered.get(extra.get("omnistage_id", ""))
        if on_rendered is not None:
            bridge = on_rendered(prompt)
            if bridge is not None:
                sampling_params.extra_args = {**extra, **bridge.extra_args()}
                if not self.has_row_cache:
                    sampling_params.skip_reading_prefix_cache = True
        async for output in super().generate(prompt, sampling_params, request_id, **options):
            yield output

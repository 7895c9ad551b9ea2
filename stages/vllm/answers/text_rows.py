"""Hidden states of texts for the stage downstream: each text is one prefill of the engine."""

import asyncio
from collections.abc import Mapping, Sequence

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.edge import Rows
from omnistage.stages.vllm.compat import AsyncLLM, RequestOutputKind, SamplingParams
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions

Headers = Mapping[str, str] | None


async def send_rows(
    engine: AsyncLLM,
    request_id: str,
    texts: Mapping[str, Sequence[JsonMap]],
    to: list[str],
    first: int,
    headers: Headers,
) -> None:
    """Prefill all texts of a request at once; the rows of each leave for the stages `to`.

    `texts`: prompts of the engine, by the argument that their rows are. `first`: the position of
    the first row that leaves.
    """
    async with asyncio.TaskGroup() as group:
        for name, given in texts.items():
            for row, prompt in enumerate(given):
                bridge = RequestOptions(
                    request_id, to=to, exported=ExportedRows(first=first), rows=Rows(name, row)
                )
                own_id = f"{request_id}-{name}-{row}"
                group.create_task(prefill(engine, own_id, prompt, bridge, headers))


async def prefill(
    engine: AsyncLLM,
    request_id: str,
    prompt: JsonMap,
    bridge: RequestOptions | None = None,
    headers: Headers = None,
    *,
    reads_cache: bool = False,
) -> float:
    """Compute every position of a prompt; the token that vLLM samples at its end is dropped.

    `reads_cache`: those that the prefix cache has are not computed. Returns when the engine had
    computed the last, in seconds of the machine's monotonic clock; an engine without statistics
    does not know, and 0.0 is returned.
    """
    params = SamplingParams(
        temperature=0,
        max_tokens=1,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=None if bridge is None else bridge.extra_args(),
    )
    params.skip_reading_prefix_cache = not reads_cache  # a row that it had would never leave
    generated = engine.generate(prompt, params, request_id, trace_headers=headers)
    read_at_s = 0.0
    async for output in generated:
        read_at_s = getattr(output.metrics, "first_token_ts", 0.0)
    return read_at_s

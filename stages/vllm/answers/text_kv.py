"""Keys and values of texts for the stage downstream: each text is one prefill of the engine."""

import asyncio
from collections.abc import Mapping, Sequence

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.edge import KeysAndValues
from omnistage.stages.vllm.answers.text_rows import Headers, prefill
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.step.request_options import RequestOptions


async def send_kv(
    engine: AsyncLLM,
    request_id: str,
    texts: Mapping[str, Sequence[JsonMap]],
    to: list[str],
    headers: Headers,
) -> float:
    """Prefill all texts of a request at once; keys and values of each leave for the stages `to`.

    `texts`: prompts of the engine, by the argument that their keys and values are. What the prefix
    cache has of them is not computed, and leaves as well. Returns before all has left:
    when the last was computed, or 0.0, as `prefill` does.
    """
    reading = []
    async with asyncio.TaskGroup() as group:
        for name, given in texts.items():
            for number, prompt in enumerate(given):
                bridge = RequestOptions(request_id, to=to, kv=KeysAndValues(name, number))
                own_id = f"{request_id}-{name}-{number}"
                one = prefill(engine, own_id, prompt, bridge, headers, reads_cache=True)
                reading.append(group.create_task(one))
    return max(task.result() for task in reading)

"""Conversations as BAGEL reads them: a text for each message, without roles."""

from collections.abc import Sequence
from typing import Any

from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stages.bagel.texts import END, REASONING, START, check_text
from omnistage.stages.worker.failure import RequestError

CHAT_TEMPLATE = (
    f"{{%- if enable_thinking -%}}{START}{REASONING}{END}{{%- endif -%}}"
    f"{{%- for message in messages -%}}{START}{{{{ message.content }}}}{END}{{%- endfor -%}}"
    f"{{%- if add_generation_prompt -%}}{START}{{%- endif -%}}"
)
UNSEEN = (
    "an image in a chat that words answer is not served: its tokens see each other, which vLLM's "
    'engine does not compute; with "image" among the modalities it is edited'
)


def check_messages(tokenizer: Any, messages: Sequence[JsonMap], has_images: bool) -> None:
    """Raise RequestError for what no conversation may have; `has_images`: whether it may images."""
    for number, message in enumerate(messages):
        place, content = f"messages[{number}].content", message.get("content") or ""
        if isinstance(content, str):
            check_text(tokenizer, content, place)
            continue
        for index, part in enumerate(content):
            path = f"{place}[{index}]"
            if part["type"] == "text":
                check_text(tokenizer, part["text"], path)
            elif not has_images:
                raise RequestError(400, f"{path}: {UNSEEN}", param=path, code="invalid_value")


def texts_of(messages: Sequence[JsonMap]) -> list[str]:
    """Return the texts of a conversation, as the template writes them."""
    contents = [message.get("content") or "" for message in messages]
    return [
        one if isinstance(one, str) else "\n".join(part["text"] for part in one) for one in contents
    ]


def thought_chunk(text: str) -> Json:
    """Return the chunk of a piece of a thought, by vLLM's name and by its older one."""
    delta = dict.fromkeys(("reasoning", "reasoning_content"), text)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def ending_chunks(num_prompt: int, num_written: int) -> list[Json]:
    """Return the chunks that end an answer in which nothing more is said."""
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_written,
        "total_tokens": num_prompt + num_written,
    }
    return [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]

"""A conversation as gradio's chat shows it."""

from collections.abc import Iterator, Sequence

from omnistage.demo.chat import ChatTurn

WAITING = "…"


def bubbles(turns: Sequence[ChatTurn], is_running: bool = False) -> list[dict[str, object]]:
    """Every turn; the last one may still run."""
    shown = [bubble for turn in turns for bubble in _of_turn(turn)]
    if is_running and not (turns[-1].answer or turns[-1].answer_files):
        shown.append({"role": "assistant", "content": WAITING})
    return shown


def _of_turn(turn: ChatTurn) -> Iterator[dict[str, object]]:
    for path in turn.files:
        yield {"role": "user", "content": {"path": path}}
    if turn.text:
        yield {"role": "user", "content": turn.text}
    if turn.answer:
        yield {"role": "assistant", "content": turn.answer}
    for path in turn.answer_files:
        yield {"role": "assistant", "content": {"path": path}}
    if turn.failure:
        yield {"role": "assistant", "content": f"**Failed.** {turn.failure}"}

"""A list of requests: as many at once as there are places, a progress bar, answers in order."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from omnistage.server.offline.content import Messages
from omnistage.server.offline.errors import OmniError
from omnistage.server.tasks.pieces import Answer

# One turn of the user, a conversation, or the fields of a chat, which win over those for all.
Prompt = Messages | Mapping[str, object]
Done = Callable[[Answer | OmniError], None]


def fields_of(prompt: Prompt, fields: Mapping[str, object]) -> dict[str, object]:
    """The fields of one chat of a list."""
    if isinstance(prompt, Mapping):
        return {**fields, **prompt}
    return {**fields, "messages": prompt}


async def answer_all(
    asking: Sequence[Callable[[], Awaitable[Answer]]], on_done: Done
) -> list[Answer | OmniError]:
    """Every answer, or what failed in its place."""

    async def answer(ask: Callable[[], Awaitable[Answer]]) -> Answer | OmniError:
        try:
            answered: Answer | OmniError = await ask()
        except OmniError as error:
            answered = error
        on_done(answered)
        return answered

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer(ask)) for ask in asking]
    return [task.result() for task in tasks]


@contextmanager
def progress_bar(total: int, is_shown: bool) -> Iterator[Done]:
    """Yields a callback for each answer; on a terminal or in a notebook a bar shows them."""
    console = Console(stderr=True)
    if not is_shown or not (console.is_terminal or console.is_jupyter):
        yield lambda _: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    said = TextColumn("{task.description}")
    with Progress(said, *columns, console=console) as progress:
        bar = progress.add_task("answers", total=total)
        num_failed = 0

        def on_done(answered: Answer | OmniError) -> None:
            nonlocal num_failed
            num_failed += isinstance(answered, OmniError)
            failed = f" ({num_failed} failed)" if num_failed else ""
            progress.update(bar, advance=1, description=f"answers{failed}")

        yield on_done

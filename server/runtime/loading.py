"""What a person sees while models load: one line a stage, on a terminal with a running clock."""

import asyncio

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from omnistage.server.runtime.fleet import Fleet
from omnistage.server.runtime.stage_link import StageState

REFRESH_S = 0.25


async def show_loading(fleet: Fleet, console: Console) -> None:
    """Return when every stage is ready; StageDied if one ended first."""
    if not console.is_terminal:
        await fleet.loaded()
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        clocks = {name: progress.add_task(f"{name}: loading", total=1) for name in fleet.health}
        loading = asyncio.create_task(fleet.loaded())
        try:
            while not (await asyncio.wait({loading}, timeout=REFRESH_S))[0]:
                _update(fleet, progress, clocks)
            _update(fleet, progress, clocks)
            loading.result()
        finally:
            loading.cancel()


def _update(fleet: Fleet, progress: Progress, clocks: dict[str, TaskID]) -> None:
    unready = fleet.unready
    for name, clock in clocks.items():
        state = unready.get(name, StageState.READY)
        is_done = state is StageState.READY
        progress.update(clock, description=f"{name}: {state}", completed=int(is_done))

"""A profile's figures for a terminal."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnistage.bench.profile.figures import Profile, StageProfile

MS, US = 1e3, 1e6
NAME_LETTERS = 90
FEWEST = 0.0005  # a share that is shown as 0.0 % is left out


def show_profile(console: Console, profile: Profile) -> None:
    """Print all of it."""
    console.print(stages_table(profile))
    console.print(shares_table(profile))
    for stage in profile.stages:
        console.print(kernels_table(profile, stage))
    for line in lines(profile):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def stages_table(profile: Profile) -> Table:
    """A line a stage."""
    runs = profile.runs
    table = Table(title=f"profile of {profile.window_s:.3f} s: {runs} of each stage")
    table.add_column("stage")
    for name in ("busy %", "beside others %", f"{runs}/s", "graphs/s", "steps", "step ms"):
        table.add_column(name, justify="right")
    for name in ("period ms", "gap ms"):
        table.add_column(name, justify="right")
    for one in profile.stages:
        table.add_row(
            one.name,
            _percent(one.busy),
            _percent(one.beside),
            f"{one.runs_per_s:.0f}",
            f"{one.graphs_per_s:.0f}",
            *_steps(one),
        )
    return table


def _steps(stage: StageProfile) -> Iterator[str]:
    steps = stage.steps
    if steps is None:
        yield from ("?", "", "", "")
        return
    yield str(steps.number)
    for value in (steps.length_s, steps.period_s, steps.gap_s):
        yield "" if value is None else f"{value * MS:.2f}"


def shares_table(profile: Profile) -> Table:
    """How many stages compute at once, and which."""
    table = Table(title=f"how many stages run {profile.runs} at once")
    table.add_column("stages")
    table.add_column("% of the window", justify="right")
    table.add_column("of these")
    for number in range(len(profile.stages) + 1):
        sets = [one for one in profile.shares if len(one.stages) == number]
        which = [
            f"{' + '.join(one.stages)} {_percent(one.share)}"
            for one in sets
            if one.stages and one.share >= FEWEST
        ]
        share = _percent(profile.share_of(number))
        table.add_row(str(number) if number else "none", share, ", ".join(which))
    return table


def kernels_table(profile: Profile, stage: StageProfile) -> Table:
    """The kernels of most time of one stage."""
    title = f"{stage.name}: the {len(stage.kernels)} {profile.runs} of most time"
    table = Table(title=title)
    for name in ("calls", "total ms", "median us"):
        table.add_column(name, justify="right")
    table.add_column(profile.runs, overflow="fold")
    for one in stage.kernels:
        cells = str(one.calls), f"{one.total_s * MS:.2f}", f"{one.median_s * US:.1f}"
        table.add_row(*cells, Text(_cut(one.name)))
    return table


def lines(profile: Profile) -> Iterator[str]:
    """Returns what a reader of the tables must know."""
    if profile.runs == "operators":
        yield (
            "The traces have no kernels of a GPU: operators on the CPU count instead, each with "
            "those that it calls."
        )
    if profile.ended_early:
        yield (
            "All requests were answered before the profile ended, so stages were idle in a part of "
            "it: more --requests, or fewer --profile-seconds, avoid that."
        )
    for one in profile.stages:
        if not one.runs_per_s:
            yield f"The trace of stage {one.name} has no {profile.runs} in the window."
    for name in profile.unprofiled:
        yield f"Stage {name} takes no profile: what it computes is not in these figures."
    if profile.num_skipped:
        yield f"{profile.num_skipped} events of the traces could not be read and were left out."
    yield profile.note
    yield f"The trace of all stages, for ui.perfetto.dev: {profile.file}"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_LETTERS else f"{name[: NAME_LETTERS - 1]}…"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"

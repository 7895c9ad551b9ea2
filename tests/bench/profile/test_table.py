"""What the tables of a profile show."""

import io

from rich.console import Console
from support.bench.profiles import profile_of_events, run, span

from omnistage.bench.profile.figures import Profile
from omnistage.bench.profile.table import NAME_LETTERS, show_profile

LONG = "void kernel<" + "x" * 200


def profile(cat: str) -> Profile:
    step = {"cat": "gpu_user_annotation"}
    events = {
        "thinker": [
            span(0.0, 1e4),
            run(LONG, 0.0, 2500.0, cat),
            run("execute_context_1(9)", 0.0, 1000.0, **step),
            run("execute_context_0(0)", 4000.0, 1000.0, **step),
        ],
        "talker": [span(0.0, 1e4), run("[bold]b", 2000.0, 1000.0, cat)],
        "code2wav": [span(0.0, 1e4)],
    }
    return profile_of_events(events)


def shown(profile: Profile, width: int = 120) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        show_profile(console, profile)
    return captured.get().splitlines()


def cells(lines: list[str], first: str) -> list[str]:
    """The cells of the first row that begins so."""
    rows = ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines)
    return next(row for row in rows if row and row[0] == first)


def test_stages_and_what_runs_at_once() -> None:
    lines = shown(profile("kernel"))
    assert cells(lines, "thinker") == [
        *("thinker", "25.0", "5.0", "100", "0", "2", "1.00", "4.00", "3.00")
    ]
    assert cells(lines, "talker")[1:6] == ["10.0", "5.0", "100", "0", "?"]
    assert cells(lines, "none")[1] == "70.0"
    assert cells(lines, "1")[1:] == ["25.0", "thinker 20.0, talker 5.0"]
    assert cells(lines, "2")[1:] == ["5.0", "thinker + talker 5.0"]
    assert cells(lines, "3")[1] == "0.0"
    assert "The trace of stage code2wav has no kernels in the window." in lines
    assert not any("operators" in line for line in lines)


def test_kernels_have_their_names_cut_and_no_markup_in_them() -> None:
    lines = shown(profile("kernel"), width=160)
    assert cells(lines, "1")[1] == "25.0"
    (long,) = [line for line in lines if "void kernel" in line]
    name = long.split("│")[-2].strip()
    assert len(name) == NAME_LETTERS
    assert LONG.startswith(name.removesuffix("…"))
    assert any("[bold]b" in line and "1000.0" in line for line in lines)


def test_on_a_cpu_the_tables_say_that_operators_count() -> None:
    lines = shown(profile("cpu_op"))
    assert any("profile of 0.010 s: operators of each stage" in line for line in lines)
    assert any("thinker: the 1 operators of most time" in line for line in lines)
    assert any(line.startswith("The traces have no kernels of a GPU") for line in lines)

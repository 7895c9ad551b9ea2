"""What the tables show."""

import io

from rich.console import Console
from support.bench.levels import FAILED, SPOKEN, level

from omnistage.bench.table import complaints, level_table, overview_table, rates_line


def text_of(table: object) -> str:
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_a_level_shows_its_metrics_in_ms() -> None:
    shown = text_of(level_table(level(4, SPOKEN, FAILED)))
    assert "concurrency 4: 2 requests, 1 failed, 2.0 s" in shown
    rows = {line.split("│")[1].strip(): line.split() for line in shown.splitlines() if "│" in line}
    assert "125.0" in rows["TTFT ms"]
    assert "500.0" in rows["TTFP ms"]
    assert "0.500" in rows["RTF"]
    assert "250.0" in rows["longest stall ms"]


def test_a_level_s_rates_are_one_line_of_those_that_are_not_zero() -> None:
    line = "0.50 requests/s, 8.00 text tokens/s, 33.00 all tokens/s, 2.00 audio s/s"
    assert rates_line(level(4, SPOKEN, FAILED)) == line
    assert rates_line(level(4, FAILED)) == ""


def test_a_text_level_has_no_rows_of_sound() -> None:
    text = SPOKEN.model_copy(update={"packets": ()})
    shown = text_of(level_table(level(1, text)))
    assert "TTFT" in shown
    assert "TTFP" not in shown
    assert "RTF" not in shown


def test_the_overview_fits_80_columns() -> None:
    slow = SPOKEN.model_copy(update={"end_s": 31.0, "text_arrivals_s": (11.5,)})
    levels = [level(1, slow), level(64, SPOKEN), level(128, FAILED)]
    shown = text_of(overview_table(levels))
    assert "…" not in shown
    assert "11500/11500" in shown
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert rows["64"][:4] == ["125/125", "500/500", "0.500/0.500", "250/250"]
    assert rows["128"] == ["0.00", "0.00", "0.00"]


def test_errors_are_counted_and_a_late_client_is_said() -> None:
    assert complaints(level(1, SPOKEN)) == []
    said = complaints(level(2, SPOKEN, FAILED, FAILED, lag_s=0.25))
    assert said[0] == "2 failed: no slot"
    assert said[1].startswith("the client woke 250 ms late (p95), with 50% of a core")


def test_a_rate_shows_its_most_in_flight_and_that_the_server_did_not_keep_up() -> None:
    ends = [(1.0 * number, 1.5 * number + 1.5) for number in range(20)]
    queued = [SPOKEN.model_copy(update={"start_s": at_s, "end_s": end_s}) for at_s, end_s in ends]
    assert complaints(level(4, *queued)) == []
    rate = level(4, *queued).model_copy(update={"concurrency": None, "rate": 1.0})
    assert "1 req/s: 20 requests, 0 failed, 8 in flight at most, " in text_of(level_table(rate))
    (line,) = complaints(rate)
    assert line.startswith("the server may not keep up with 1 req/s: its queue grew")


def test_answers_that_repeat_one_token_are_said() -> None:
    broken = SPOKEN.model_copy(update={"longest_repeat": 8})
    (line,) = complaints(level(4, SPOKEN, broken, broken))
    assert line.startswith("2 of 3 answers repeat one token 8 times and more")
    assert complaints(level(4, SPOKEN.model_copy(update={"longest_repeat": 7}))) == []

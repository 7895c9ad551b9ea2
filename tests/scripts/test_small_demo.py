"""`make demo` shows a person what there is to see, and little else."""

import sys
import threading
import time
from pathlib import Path

import pytest
import small_demo
from support.gateway.serving import OMNI, running_gateway

MAX_LINES = 25
NOISE = """
import sys
for number in range(99):
    print("a noise", file=sys.stdout if number % 2 else sys.stderr)
"""


def server_of(url: str) -> list[str]:
    """A process that says where it listens, makes a noise, and ends when it is interrupted."""
    says = f"print('INFO listening on {url}', flush=True)"
    waits = "import signal\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(0))\nsignal.pause()"
    return [sys.executable, "-c", f"{NOISE}\n{says}\n{waits}"]


def test_a_run_shows_stages_question_answer_and_times_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with running_gateway(tmp_path, OMNI, loading=frozenset({"talker"})) as gateway:

        def load() -> None:
            time.sleep(0.5)
            gateway.do(lambda: gateway.stages.stages["talker"].become_ready())

        loading = threading.Thread(target=load)
        loading.start()
        small_demo.demonstrate(server_of(gateway.url), tmp_path / "log")
        loading.join()
    shown = "".join(capfd.readouterr())
    for stage in OMNI["stages"]:
        assert f"{stage}: ready" in shown
    for word in (small_demo.QUESTION, "answer      'Hello there'", "answer.wav", "TTFP", "RTF"):
        assert word in shown
    assert (tmp_path / small_demo.ANSWER).stat().st_size > 44
    assert "noise" not in shown
    assert "/health" not in shown
    assert len(shown.splitlines()) < MAX_LINES
    assert (tmp_path / "log").read_text().count("a noise") == 99


def test_a_server_that_ends_while_it_loads_shows_the_end_of_its_log(tmp_path: Path) -> None:
    fails = [sys.executable, "-c", "raise SystemExit('out of memory')"]
    with pytest.raises(SystemExit, match=r"(?s)out of memory.*ended while it loaded"):
        small_demo.demonstrate(fails, tmp_path / "log")

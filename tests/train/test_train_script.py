"""train.sh runs each step once, goes on where it was cut off, and stops at what fails."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Notes what it is to run and on which GPU, makes the files of the step, fails at $FAILS.
PYTHON = f"""#!/bin/bash
[ "$1" = -c ] && exec {sys.executable} "$@"
echo "$CUDA_VISIBLE_DEVICES $*" >> "$NOTES"
case "$*" in *"$FAILS"*) exit 3 ;; esac
while [ $# -gt 0 ]; do
  case "$1" in
    --data) data=$2 ;; --out) out=$2 ;; --folder) folder=$2 ;; --only) only=$2 ;;
    *.py) program=$1 ;;
  esac
  shift
done
case "$program" in
  *make_data.py)
    [ "$only" = voices ] && touch "$data/utterances.pkl" || touch "$data/questions.pkl" ;;
  */codes.py) touch "$out/codes-data.pt" ;;
  */media.py) touch "$out/media.pt" ;;
  */write.py) mkdir -p "$folder"; touch "$folder/config.json" ;;
esac
"""


class Machine:
    """A place with a Python that only notes what it is to run, and some GPUs."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self._folder, self._notes = folder, folder / "notes"
        programs = folder / "bin"
        programs.mkdir()
        listed = "".join(f"echo GPU {number}\n" for number in range(gpus))
        for name, text in (("python", PYTHON), ("nvidia-smi", f"#!/bin/bash\n{listed}")):
            (programs / name).write_text(text)
            (programs / name).chmod(stat.S_IRWXU)
        self._programs = programs

    def train(self, fails: str = "nothing") -> tuple[int, list[str]]:
        """The script's exit status, and what was run on which GPU, in order."""
        self._notes.write_text("")
        environment = dict(
            os.environ,
            PATH=f"{self._programs}:{os.environ['PATH']}",
            PYTHON=str(self._programs / "python"),
            NOTES=str(self._notes),
            FAILS=fails,
        )
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run(
            ["bash", "train/train.sh", str(self._folder / "out")],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=False,
        )
        return done.returncode, self._notes.read_text().splitlines()


def programs(lines: list[str]) -> list[str]:
    """The programs of train/ in these lines, in order."""
    return [part[6:] for line in lines for part in line.split() if part.startswith("train/")]


def test_each_step_runs_once_in_its_order(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    status, lines = machine.train()
    assert (status, programs(lines)) == (
        0,
        [
            *("make_data.py", "make_data.py", "codes.py", "thinker.py", "code2wav.py"),
            *("image/vae.py", "image/draw.py", "image/sharpen.py", "image/write_image.py"),
            *("media.py", "talker.py", "write.py", "hear.py", "image/judge_image.py"),
        ],
    )
    assert "--minutes 28" in next(line for line in lines if "talker.py" in line)
    assert machine.train() == (0, [])


def test_a_failed_step_ends_it_and_the_next_call_goes_on_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    status, lines = machine.train(fails="media.py")
    assert status != 0
    assert programs(lines)[-1] == "media.py"
    status, lines = machine.train()
    assert (status, programs(lines)[0]) == (0, "media.py")
    assert "thinker.py" not in programs(lines)


@pytest.mark.parametrize("failed", ["thinker.py", "code2wav.py", "draw.py"])
def test_on_several_gpus_the_media_wait_for_all_that_runs_beside(
    tmp_path: Path, failed: str
) -> None:
    machine = Machine(tmp_path, 4)
    status, lines = machine.train(fails=failed)
    assert status != 0
    assert "media.py" not in programs(lines)
    status, more = machine.train()
    assert status == 0
    beside = {"thinker.py", "code2wav.py", "image/draw.py"}
    assert [name for name in programs(more) if name in beside] == [
        next(name for name in beside if name.endswith(failed))
    ]
    gpus = {name: line.split()[0] for line in (*lines, *more) for name in programs([line])}
    assert (gpus["thinker.py"], gpus["code2wav.py"], gpus["image/draw.py"]) == ("0", "1", "2")
    talker = next(line for line in more if "talker.py" in line)
    assert "--nproc-per-node 4" in talker
    assert "--minutes 8" in talker

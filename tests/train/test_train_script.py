"""train.sh runs each step of its parts once, goes on where it was cut off, stops at what fails."""

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

    def train(
        self, *parts: str, fails: str = "nothing", visible: str | None = None
    ) -> tuple[int, list[str]]:
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
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        done = subprocess.run(
            ["bash", "train/train.sh", str(self._folder / "out"), *parts],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=False,
        )
        return done.returncode, self._notes.read_text().splitlines()

    def is_done(self, *parts: str) -> None:
        """Have these parts in the folder, as from another machine."""
        (self._folder / "out").mkdir()
        for part in parts:
            (self._folder / "out" / f"{part}.done").touch()


DRAWINGS = ("image/vae.py", "image/draw.py", "image/sharpen.py", "image/write_image.py")


def programs(lines: list[str]) -> list[str]:
    """The programs of train/ in these lines, in order."""
    return [part[6:] for line in lines for part in line.split() if part.startswith("train/")]


def gpus(lines: list[str]) -> dict[str, str]:
    """On which GPU each program was run."""
    return {name: line.split()[0] for line in lines for name in programs([line])}


def options(lines: list[str], program: str) -> str:
    """With which options a program was run."""
    return next(line for line in lines if f"train/{program}" in line)


def test_each_step_runs_once_in_its_order(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    status, lines = machine.train()
    ran = programs(lines)
    assert status == 0
    assert [name for name in ran if name in DRAWINGS] == list(DRAWINGS)
    assert [name for name in ran if name not in DRAWINGS] == [
        *("make_data.py", "make_data.py", "codes.py", "thinker.py", "media.py", "code2wav.py"),
        *("talker.py", "write.py", "hear.py", "image/judge_image.py"),
    ]
    assert ran.index(DRAWINGS[-1]) < ran.index("thinker.py")
    assert "--minutes 28" in options(lines, "talker.py")
    assert machine.train() == (0, [])


def test_a_failed_step_ends_it_and_the_next_call_goes_on_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    status, lines = machine.train(fails="talker.py")
    assert status != 0
    assert programs(lines)[-1] == "talker.py"
    status, lines = machine.train()
    assert (status, programs(lines)[0]) == (0, "talker.py")
    assert "thinker.py" not in programs(lines)


@pytest.mark.parametrize("failed", ["thinker.py", "code2wav.py", "draw.py"])
def test_on_several_gpus_the_talker_waits_for_all_that_runs_beside(
    tmp_path: Path, failed: str
) -> None:
    machine = Machine(tmp_path, 4)
    status, lines = machine.train(fails=failed)
    assert status != 0
    assert "talker.py" not in programs(lines)
    status, more = machine.train()
    assert status == 0
    beside = {"thinker.py", "code2wav.py", "image/draw.py"}
    assert [name for name in programs(more) if name in beside] == [
        next(name for name in beside if name.endswith(failed))
    ]
    used = gpus([*lines, *more])
    assert (used["thinker.py"], used["code2wav.py"], used["image/draw.py"]) == ("0", "1", "2")
    assert "--nproc-per-node 4" in options(more, "talker.py")
    assert "--minutes 8" in options(more, "talker.py")


def test_on_two_gpus_code2wav_follows_the_drawings(tmp_path: Path) -> None:
    status, lines = Machine(tmp_path, 4).train(visible="2,3")
    used, ran = gpus(lines), programs(lines)
    assert status == 0
    assert (used["thinker.py"], used["image/draw.py"], used["code2wav.py"]) == ("2", "3", "3")
    assert ran.index(DRAWINGS[-1]) < ran.index("code2wav.py")
    assert "--nproc-per-node 2" in options(lines, "talker.py")
    assert "--minutes 14" in options(lines, "talker.py")


def test_parts_are_trained_with_what_they_need_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    status, lines = machine.train("thinker", "drawings")
    assert status == 0
    assert sorted(programs(lines)) == sorted(["make_data.py", "thinker.py", *DRAWINGS])
    status, lines = machine.train("thinker", "code2wav")
    assert (status, programs(lines)) == (0, ["make_data.py", "codes.py", "code2wav.py"])


def test_a_talker_is_trained_by_a_thinker_of_another_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.is_done("thinker", "code2wav", "drawings")
    status, lines = machine.train("talker")
    ran = programs(lines)
    assert status == 0
    assert sorted(ran[:-1]) == ["codes.py", "make_data.py", "make_data.py", "media.py"]
    assert ran[-1] == "talker.py"
    assert programs(machine.train("judged")[1]) == ["write.py", "hear.py", "image/judge_image.py"]


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    assert Machine(tmp_path, 1).train("thinker", "speech") == (2, [])

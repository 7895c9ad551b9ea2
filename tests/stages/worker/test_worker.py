"""The entry of a stage's process."""

import os
import subprocess
import sys

from omnistage.stages.worker.lifetime import STAGE_MARK

IMPORTED = """
import ctypes, runpy, sys
runpy.run_module("omnistage.stages.worker.worker", run_name="__mp_main__")
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # PR_GET_PDEATHSIG
print(signal.value, "torch" in sys.modules)
"""


def test_an_engine_that_is_only_starting_is_tied_to_its_parent_already() -> None:
    environment = {**os.environ, STAGE_MARK: "talker"}
    done = subprocess.run([sys.executable, "-c", IMPORTED], env=environment, capture_output=True)
    assert done.stdout.split() == [b"9", b"False"], done.stderr

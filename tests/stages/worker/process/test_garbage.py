"""The garbage collector in a stage's process, and what the process does when it ends."""

import subprocess
import sys

IMPORT = "from omnistage.stages.worker.process.garbage import begin_imports, end_imports\n"
BEGUN = f"{IMPORT}begin_imports()\n"
NOISY = """
class Noisy:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("collected", flush=True)
kept = Noisy()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_as_many_objects_as_imports_make_are_never_collected() -> None:
    code = """
import gc
def runs():
    return sum(one["collections"] for one in gc.get_stats())
usual, before = gc.get_threshold(), runs()
begin_imports()
made = [[] for _ in range(1_500_000)]
print(runs() - before, gc.get_freeze_count())
end_imports()
print(gc.get_freeze_count() > 10_000, gc.get_threshold() == usual)
"""
    done = run(IMPORT + code)
    assert done.stdout.split() == ["0", "0", "True", "True"], done.stderr


def test_an_exit_collects_nothing_even_if_a_library_unfreezes_and_collects() -> None:
    """vLLM does that as an engine ends, while SystemExit is on its way."""
    code = """
import gc, sys, weakref
class Circle:
    def __init__(self):
        self.itself = self
def collects():
    gone = weakref.ref(Circle())
    gc.unfreeze()
    gc.collect()
    return gone() is None
begin_imports()
end_imports()
print(collects())
try:
    sys.exit(0)
finally:
    print(collects())
"""
    done = run(IMPORT + code)
    assert (done.stdout.split(), done.returncode) == (["True", "False"], 0), done.stderr


def test_a_process_that_is_not_ours_is_left_alone() -> None:
    code = """
import gc
gc.set_threshold(500)
end_imports()
print(gc.get_freeze_count(), gc.get_threshold()[0])
"""
    done = run(IMPORT + code)
    assert done.stdout.split() == ["0", "500"], done.stderr


def test_at_its_end_nothing_is_collected_or_printed() -> None:
    assert run(NOISY).stdout == "collected\n"
    assert run(BEGUN + NOISY).stdout == ""


def test_what_was_printed_before_arrives_and_the_exit_code_stays() -> None:
    done = run(BEGUN + "import sys; sys.stdout.write('said'); sys.exit(3)")
    assert (done.stdout, done.returncode) == ("said", 3)
    done = run(BEGUN + "raise ValueError('why')")
    assert done.stderr.endswith("ValueError: why\n")
    assert done.returncode == 1


def test_what_others_do_at_the_end_comes_first() -> None:
    code = "import atexit; atexit.register(print, 'cleaned up')"
    assert run(BEGUN + code).stdout == "cleaned up\n"

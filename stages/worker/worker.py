"""`python -m omnistage.stages.worker.worker --stage NAME --run-directory DIR`: one stage.

`--parent` is the id of the process that starts it, whose end is its end. With `--importer` it
imports what several stages need, and then forks their processes (process/forking.py).

An engine's processes are tied to their parent before anything else: one that was just starting
must not outlive a parent that is killed. A forked one is tied as it begins. A spawned one runs this
module (multiprocessing does that with its parent's main module) before the imports that take
seconds.
"""

import argparse
import os
import shlex
import socket
import sys
from pathlib import Path

from setproctitle import setproctitle

from omnistage.stage_configs.onnx_telemetry import keep_onnxruntime_silent
from omnistage.stages.cpu_shim import install_in_children
from omnistage.stages.worker.process.garbage import begin_imports
from omnistage.stages.worker.process.lifetime import PARENT, STAGE_MARK, begin_fork, end_with_parent


def main() -> None:
    """Tie this process to its parent's life, then load and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", nargs="+", required=True)
    parser.add_argument("--run-directory", type=Path, required=True)
    parser.add_argument("--parent", type=int, default=os.getppid())
    parser.add_argument("--importer", action="store_true")
    arguments = parser.parse_args()
    stage, directory = arguments.stage[0], arguments.run_directory
    before = dict(os.environ)
    os.environ[STAGE_MARK] = stage
    os.environ[PARENT] = str(arguments.parent)
    keep_onnxruntime_silent()
    end_with_parent()
    os.register_at_fork(after_in_child=begin_fork)
    begin_imports()
    install_in_children(directory / f"{stage}.site")
    if arguments.importer:
        from omnistage.stages.messages.forked import worker_command
        from omnistage.stages.worker.process.forking import fork_stages
        from omnistage.stages.worker.process.stage_process import import_kinds

        def start_anew(stage: str) -> None:
            own = worker_command([stage], directory, os.getppid())
            os.execve(sys.executable, own, before)

        import_kinds(arguments.stage, directory)
        stage = fork_stages(socket.socket(fileno=0), start_anew)
        os.environ[STAGE_MARK] = stage
        setproctitle(shlex.join(worker_command([stage], directory, os.getppid())))

    from omnistage.stages.worker.process.stage_process import run_stage

    run_stage(stage, directory)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    end_with_parent()
    begin_imports()

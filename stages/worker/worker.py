"""`python -m omnistage.stages.worker.worker --stage NAME --run-directory DIR`: one stage.

`--parent` is the id of the process that starts it, whose end is its end.

An engine's processes are tied to their parent before anything else: one that was just starting
must not outlive a parent that is killed. A forked one is tied as it begins. A spawned one runs this
module (multiprocessing does that with its parent's main module) before the imports that take
seconds.
"""

import argparse
import os
from pathlib import Path

from omnistage.stage_configs.onnx_telemetry import keep_onnxruntime_silent
from omnistage.stages.cpu_shim import install_in_children
from omnistage.stages.worker.process.garbage import begin_imports
from omnistage.stages.worker.process.lifetime import PARENT, STAGE_MARK, begin_fork, end_with_parent


def main() -> None:
    """Tie this process to its parent's life, then load and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", required=True)
    parser.add_argument("--run-directory", type=Path, required=True)
    parser.add_argument("--parent", type=int, default=os.getppid())
    arguments = parser.parse_args()
    os.environ[STAGE_MARK] = arguments.stage
    os.environ[PARENT] = str(arguments.parent)
    keep_onnxruntime_silent()
    end_with_parent()
    os.register_at_fork(after_in_child=begin_fork)
    begin_imports()
    install_in_children(arguments.run_directory / f"{arguments.stage}.site")

    from omnistage.stages.worker.process.stage_process import run_stage

    run_stage(arguments.stage, arguments.run_directory)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    end_with_parent()
    begin_imports()

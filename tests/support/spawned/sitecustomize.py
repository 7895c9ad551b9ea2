"""Python runs this at each start: engines that a test starts begin as those of a stage do."""

import sys

if "--multiprocessing-fork" in sys.orig_argv:
    from omnistage.stages.worker.process.garbage import begin_imports

    begin_imports()

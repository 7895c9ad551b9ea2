"""What each engine core imports: engines of tests are forked from a process that has."""

import importlib

from omnistage.stages.worker.process.garbage import begin_imports

begin_imports()
for name in (
    "omnistage.stages.vllm.engine.engine",
    "vllm.model_executor.models",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
):
    importlib.import_module(name)

"""How far an engine is with loading, by what vLLM itself offers: a load format, and its log.

The load format counts the bytes of the weights. The phases are known by lines of vLLM's log: one
whose words have changed in another version is not seen, and the phase before it is told for longer.
"""

import logging
from collections.abc import Generator
from dataclasses import replace

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from omnistage.stages.messages.loading import BytesRead, Phase, own_note, tell_loading
from omnistage.stages.vllm.loading.fit import stored_bytes
from omnistage.stages.vllm.models.hidden_states import ExportingLoader
from omnistage.stages.worker.start_error import tell_engines_failure

LOAD_FORMAT = "omnistage_auto"
REMOTE = "://"  # in the name of a model that vLLM streams from elsewhere, by formats of its own
# Words of vLLM's lines, before their arguments are put in, and what begins with them.
PHASES = (
    ("Starting to load model", Phase.READING),
    ("Warming up model for the compilation", Phase.WARMING_UP),  # of a CPU, which may not compile
    ("Starting torch.compile", Phase.COMPILING),
    ("for vLLM's torch.compile", Phase.COMPILING),
    ("Profiling CUDA graph memory", Phase.CAPTURING),
    ("for CUDA graph capture", Phase.CAPTURING),
    ("Graph capturing finished", Phase.WARMING_UP),
    ("init engine (profile, create kv cache, warmup model)", Phase.WARMING_UP),
)
VLLM = "vllm"  # what the names of its loggers begin with
FAILURES = ("EngineCore failed to start", "WorkerProc failed to start")


class CountedLoader(ExportingLoader, DefaultModelLoader):
    """vLLM's usual loader; what it reads is told."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yields the weights like vLLM. The files are all there when the first of them comes."""
        read = None
        for name, weight in super().get_all_weights(model_config, model):
            read = read or BytesRead(stored_bytes(model_config))
            yield name, weight
            read.add(weight.nbytes)
        if read is not None:
            read.tell()


class FollowedRecords:
    """Makes records as it was done before, and tells what vLLM's say of loading.

    A handler would not do: vLLM configures its log anew after its plugins, and drops all handlers.
    """

    def __init__(self) -> None:
        self._make = logging.getLogRecordFactory()

    def __call__(self, *args: object, **kwargs: object) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        if record.name.startswith(VLLM):
            _tell(record)
        return record


def _tell(record: logging.LogRecord) -> None:
    """The phase that begins, or why the engine cannot start."""
    said = str(record.msg)
    for words, phase in PHASES:
        if words in said:
            tell_loading(phase)
    if said.startswith(FAILURES) and record.exc_info and record.exc_info[1] is not None:
        tell_engines_failure(record.exc_info[1])


def load_format_of(asked: str, model: str) -> str:
    """Ours in place of vLLM's usual one."""
    return LOAD_FORMAT if asked == "auto" and REMOTE not in model else asked


def register_loading() -> None:
    """Make the load format known in this process, and follow vLLM's log while a stage loads."""
    register_model_loader(LOAD_FORMAT)(CountedLoader)
    if own_note() is not None and not isinstance(logging.getLogRecordFactory(), FollowedRecords):
        logging.setLogRecordFactory(FollowedRecords())

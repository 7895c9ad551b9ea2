"""Tells how much of a checkpoint has been downloaded, whichever library downloads it.

All of them write to the hub's cache, some of them from the engine's process: a thread of the
stage's own process looks at the sizes there. How much it will be is asked of the hub once.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from omnistage.stages.messages.loading import Phase, own_note, tell_loading, told_phase

logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
ASK_S = 10.0
PIPELINE_INDEX = "model_index.json"
ENDING = ".safetensors"
BEFORE = (Phase.STARTING, Phase.DOWNLOADING)  # later phases have all that they need


@contextmanager
def download_told(model: str) -> Iterator[None]:
    """Reports the download of a model inside, if it is one of the hub."""
    if own_note() is None or Path(model).exists():
        yield
        return
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(model, is_over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()


def _watch(model: str, is_over: threading.Event) -> None:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=model, repo_type="model")
    blobs = Path(constants.HF_HUB_CACHE) / folder / "blobs"
    wanted: Mapping[str, int] | None = None
    while not is_over.wait(INTERVAL_S) and told_phase() in BEFORE:
        if any(blobs.glob("*.incomplete")):
            wanted = _wanted(model) if wanted is None else wanted
            present, total = _present(blobs, wanted), sum(wanted.values())
            tell_loading(Phase.DOWNLOADING, present, total, behind=BEFORE)


def _wanted(model: str) -> Mapping[str, int]:
    """The weights of a model by the names of their files in the cache; empty if nobody knows."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(model, files_metadata=True, timeout=ASK_S)
    except Exception as error:  # noqa: BLE001 - the download itself will say what is wrong
        logger.info("how much will be downloaded is not known: %s", error)
        return {}
    files = {file.rfilename: file for file in info.siblings or ()}
    is_pipeline = PIPELINE_INDEX in files
    return {
        file.lfs.sha256: file.size
        for name, file in files.items()
        if _is_read(name, is_pipeline) and file.lfs is not None and file.size
    }


def _is_read(name: str, is_pipeline: bool) -> bool:
    """Returns whether a file is read: a pipeline's weights without variants; a model's own."""
    *folders, file = name.split("/")
    if not file.endswith(ENDING):
        return False
    is_variant = "." in file.removesuffix(ENDING)
    return bool(folders) and not is_variant if is_pipeline else not folders


def _present(blobs: Path, wanted: Mapping[str, int]) -> int:
    """How many of these bytes are there, in whole files and in such as grow."""
    return sum(
        size if (blobs / name).exists() else max(_sizes(blobs, name), default=0)
        for name, size in wanted.items()
    )


def _sizes(blobs: Path, name: str) -> Iterator[int]:
    """Returns the sizes of files that are not whole yet: each waiting process may have its own."""
    for path in blobs.glob(f"{name}*.incomplete"):
        with suppress(OSError):  # it is whole now
            yield path.stat().st_size

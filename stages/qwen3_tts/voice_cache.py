"""Features of reference sounds that are known: the latest in memory, more of them in a folder.

A file there is whole or not there. One that cannot be read is as if it were not there.
"""

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

logger = logging.getLogger(__name__)

MAX_KNOWN = 256  # in memory: some tens of KiB each
MAX_STORED = 4096  # in the folder, of all checkpoints together
SUBFOLDER = "features"
SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class VoiceFeatures:
    """The vector of a voice [hidden], and the codes of its sound [frames, codebooks] or none."""

    speaker: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32]

    @property
    def has_codes(self) -> bool:
        """Returns whether there are any."""
        return len(self.codes) > 0


class VoiceCache:
    """By a sound's key, for one checkpoint; any thread may use it, and other processes its folder.

    What was asked for longest ago goes first, in memory and in the folder.
    """

    def __init__(self, identity: str, num_codebooks: int, folder: Path | None = None) -> None:
        """`identity`: of what makes the features; those of others are not found."""
        self._identity = identity
        self.no_codes = np.zeros((0, num_codebooks), np.int32)
        self._known: OrderedDict[str, VoiceFeatures] = OrderedDict()
        self._lock = threading.Lock()
        self._folder = folder / SUBFOLDER if folder is not None else None

    def get(self, key: str, wants_codes: bool) -> VoiceFeatures | None:
        """Returns what is known of a sound, if that is enough."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._read(key)
            if found is None:
                return None
            self._keep(key, found)
        return found if found.has_codes or not wants_codes else None

    def put(self, key: str, features: VoiceFeatures) -> None:
        """Know it from now on."""
        with self._lock:
            self._keep(key, features)
            try:
                self._write(key, features)
            except OSError as error:
                logger.warning("features of a voice are not kept: %s", error)

    def _keep(self, key: str, features: VoiceFeatures) -> None:
        self._known[key] = features
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    # The folder

    def _path(self, key: str) -> Path | None:
        if self._folder is None:
            return None
        name = hashlib.sha256(
            f"{key} {self._identity} {self.no_codes.shape[1]}".encode()
        ).hexdigest()
        return self._folder / f"{name}{SUFFIX}"

    def _read(self, key: str) -> VoiceFeatures | None:
        path = self._path(key)
        if path is None:
            return None
        try:
            features = self._features(load(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            logger.warning("%s is made anew: %s", path, error)
            return None
        with suppress(OSError):  # a folder may be there to be read only
            os.utime(path)  # asked for now
        return features

    def _features(self, stored: dict[str, npt.NDArray[np.generic]]) -> VoiceFeatures:
        if stored.keys() != {"speaker", "codes", "sha256"}:
            raise ValueError(f"it has {', '.join(sorted(stored))}")
        features = VoiceFeatures(
            stored["speaker"].astype(np.float32), stored["codes"].astype(np.int32)
        )
        if stored["sha256"].tobytes() != _checksum(features):
            raise ValueError("its checksum is another")
        return features

    def _write(self, key: str, features: VoiceFeatures) -> None:
        path = self._path(key)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_bytes(_stored(features))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        self._make_room(path.parent)

    def _make_room(self, folder: Path) -> None:
        """Removes the oldest files; others may remove some meanwhile."""
        times: dict[Path, float] = {}
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                times[path] = path.stat().st_mtime
        for path in sorted(times, key=times.__getitem__)[: max(0, len(times) - MAX_STORED)]:
            path.unlink(missing_ok=True)


def _stored(features: VoiceFeatures) -> bytes:
    checksum = np.frombuffer(_checksum(features), np.uint8)
    tensors = {"speaker": features.speaker, "codes": features.codes, "sha256": checksum}
    return save({name: np.ascontiguousarray(one) for name, one in tensors.items()})


def _checksum(features: VoiceFeatures) -> bytes:
    digest = hashlib.sha256(f"{features.speaker.shape} {features.codes.shape}".encode())
    digest.update(features.speaker.tobytes())
    digest.update(features.codes.tobytes())
    return digest.digest()

"""Features of reference sounds that are known: the latest in memory, more of them in a folder.

Which tensors they are is the family's choice.

A file there is whole or not there. One that cannot be read is as if it were not there.
"""

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

logger = logging.getLogger(__name__)

MAX_KNOWN = 256  # in memory: some tens of KiB each
MAX_STORED = 4096  # in the folder, of all checkpoints together
SUBFOLDER = "features"
SUFFIX = ".safetensors"
CHECKSUM = "sha256"

Features = Mapping[str, npt.NDArray[Any]]


def identity_of(encoders: Iterable[nn.Module]) -> str:
    """Returns the identity of the weights: features of other weights are useless."""
    digest = hashlib.sha256()
    for encoder in encoders:
        for name, tensor in encoder.state_dict().items():
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class VoiceCache:
    """By a sound's key, for one checkpoint; any thread may use it, and other processes its folder.

    What was asked for longest ago goes first, in memory and in the folder.
    """

    def __init__(
        self, dtypes: Mapping[str, npt.DTypeLike], identity: str, folder: Path | None = None
    ) -> None:
        """`dtypes`: of the features, by their names. `identity`: of what makes them; those of
        others are not found.
        """
        self._dtypes = dtypes
        self._identity = identity
        self._known: OrderedDict[str, Features] = OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._folder = folder / SUBFOLDER if folder is not None else None

    def get(self, key: str, *needed: str) -> Features | None:
        """Returns what is known of a sound, if none of the needed tensors is empty."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._read(key)
            if found is None:
                return None
            self._keep(key, found)
        return found if all(len(found[name]) for name in needed) else None

    def get_or_make(self, key: str, make: Callable[[], Features], *needed: str) -> Features:
        """Returns the same, made and kept if it is not known: of one sound at a time."""
        known = self.get(key, *needed)
        if known is None:
            with self._making:
                known = self.get(key, *needed)
                if known is None:
                    known = make()
                    self.put(key, known)
        return known

    def put(self, key: str, features: Features) -> None:
        """Know it from now on."""
        with self._lock:
            self._keep(key, features)
            try:
                self._write(key, features)
            except OSError as error:
                logger.warning("features of a voice are not kept: %s", error)

    def _keep(self, key: str, features: Features) -> None:
        self._known[key] = features
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    # The folder

    def _path(self, key: str) -> Path | None:
        if self._folder is None:
            return None
        name = hashlib.sha256(f"{key} {self._identity}".encode()).hexdigest()
        return self._folder / f"{name}{SUFFIX}"

    def _read(self, key: str) -> Features | None:
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

    def _features(self, stored: dict[str, npt.NDArray[Any]]) -> Features:
        if stored.keys() != {*self._dtypes, CHECKSUM}:
            raise ValueError(f"it has {', '.join(sorted(stored))}")
        features = {name: stored[name].astype(kind) for name, kind in self._dtypes.items()}
        if stored[CHECKSUM].tobytes() != _checksum(features):
            raise ValueError("its checksum is another")
        return features

    def _write(self, key: str, features: Features) -> None:
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


def _stored(features: Features) -> bytes:
    checksum = np.frombuffer(_checksum(features), np.uint8)
    tensors = {**features, CHECKSUM: checksum}
    return save({name: np.ascontiguousarray(one) for name, one in tensors.items()})


def _checksum(features: Features) -> bytes:
    ordered = [features[name] for name in sorted(features)]
    digest = hashlib.sha256(" ".join(str(one.shape) for one in ordered).encode())
    for one in ordered:
        digest.update(one.tobytes())
    return digest.digest()

"""Debian's flite by its libraries: a text becomes a wave, in this process."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

# By the names under which the small model has them.
VOICES = {"adam": "rms", "ben": "kal16", "colin": "awb", "diana": "slt"}
SPEAKERS = tuple(VOICES)
FLITE_RATE_HZ = 16_000
_LANGUAGE = ("flite", "flite_cmulex", "flite_usenglish")


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


def _library(name: str, folder: str) -> ctypes.CDLL:
    file = f"lib{name}.so.1"
    path = str(Path(folder) / file) if folder else file
    return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


@cache
def _voice(name: str, folder: str) -> tuple[ctypes.CDLL, int]:
    libraries = [_library(one, folder) for one in _LANGUAGE]
    flite = libraries[0]
    flite.flite_init()
    flite.flite_text_to_wave.restype = ctypes.POINTER(_Wave)
    flite.flite_text_to_wave.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    flite.delete_wave.argtypes = [ctypes.POINTER(_Wave)]
    register = getattr(_library(f"flite_cmu_us_{name}", folder), f"register_cmu_us_{name}")
    register.restype = ctypes.c_void_p
    register.argtypes = [ctypes.c_char_p]
    return flite, register(None)


def speak(text: str, voice: str, folder: str = "") -> npt.NDArray[np.int16]:
    """Samples int16 [n] at 16 kHz of a voice of ours; `folder` has the libraries, or the system."""
    flite, handle = _voice(VOICES[voice], folder)
    wave = flite.flite_text_to_wave(text.encode(), handle)
    made = wave.contents
    if made.sample_rate != FLITE_RATE_HZ:
        raise ValueError(f"{voice} speaks at {made.sample_rate} Hz, not at {FLITE_RATE_HZ}")
    samples = np.ctypeslib.as_array(made.samples, (made.num_samples,)).copy()
    flite.delete_wave(wave)
    return samples


def speak_all(jobs: Sequence[tuple[str, str]], folder: str = "") -> list[npt.NDArray[np.int16]]:
    """The samples of pairs of text and voice, each trimmed to 60 ms of silence at both ends."""
    return [trimmed(speak(text, voice, folder)) for text, voice in jobs]


def trimmed(samples: npt.NDArray[np.int16], margin: int = 960) -> npt.NDArray[np.int16]:
    """The samples without the silence before and behind them, but for a margin."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 200)
    if len(loud) == 0:
        return samples
    return samples[max(0, loud[0] - margin) : loud[-1] + margin]

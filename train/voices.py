"""Debian's flite by its libraries: a text becomes a wave, in this process."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

# By the names under which the small model has them.
VOICES = {"adam": "rms", "ben": "kal16", "colin": "awb", "diana": "slt"}
SPEAKERS = tuple(VOICES)
FLITE_RATE_HZ = 16_000
# Of a token: its last word, that one's last syllable, its last sound.
_LAST_END = b"daughtern.R:SylStructure.daughtern.daughtern.R:Segment.end"
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
    for name_, result, arguments in (
        ("flite_synth_text", ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_void_p)),
        ("utt_wave", ctypes.POINTER(_Wave), (ctypes.c_void_p,)),
        ("utt_relation", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)),
        ("relation_head", ctypes.c_void_p, (ctypes.c_void_p,)),
        ("item_next", ctypes.c_void_p, (ctypes.c_void_p,)),
        ("flite_ffeature_string", ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_char_p)),
        ("flite_ffeature_float", ctypes.c_float, (ctypes.c_void_p, ctypes.c_char_p)),
        ("delete_utterance", None, (ctypes.c_void_p,)),
    ):
        function = getattr(flite, name_)
        function.restype, function.argtypes = result, arguments
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


@dataclass(frozen=True)
class Spoken:
    """Samples int16 [n] at 16 kHz, trimmed; where each word of the text ends, in samples."""

    samples: npt.NDArray[np.int16]
    ends: tuple[int, ...]


def speak_words(text: str, voice: str, folder: str = "") -> Spoken:
    """A voice with the ends of the text's words: of what stands between spaces."""
    flite, handle = _voice(VOICES[voice], folder)
    utterance = flite.flite_synth_text(text.encode(), handle)
    wave = flite.utt_wave(utterance).contents
    samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
    ends = []
    token = flite.relation_head(flite.utt_relation(utterance, b"Token"))
    while token:
        # "twenty" of 20: a token of many words ends with the last one.
        end = flite.flite_ffeature_float(token, _LAST_END)
        ends.append(int(end * FLITE_RATE_HZ))
        token = flite.item_next(token)
    flite.delete_utterance(utterance)
    first, last = _loud(samples)
    return Spoken(
        samples[first:last], tuple(min(max(0, one - first), last - first) for one in ends)
    )


def trimmed(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """The samples without the silence before and behind them, but for a margin."""
    first, last = _loud(samples)
    return samples[first:last]


def _loud(samples: npt.NDArray[np.int16], margin: int = 960) -> tuple[int, int]:
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 200)
    if len(loud) == 0:
        return 0, len(samples)
    return max(0, int(loud[0]) - margin), min(len(samples), int(loud[-1]) + margin)

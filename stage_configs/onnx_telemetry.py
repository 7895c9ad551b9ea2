"""Keeps onnxruntime from reporting: Diffusers imports it wherever it is installed."""

import os


def keep_onnxruntime_silent() -> None:
    """Keep onnxruntime from writing an id of this machine and from reporting what it runs.

    Call it before onnxruntime is imported. Processes started from here inherit it; a value that the
    operator has set stays.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

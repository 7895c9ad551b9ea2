"""The settings with which a session starts, and what its server refuses of them."""

from typing import Literal

from omnistage.server.common.served import check_makes, check_model
from omnistage.server.realtime.chat_flow import ChatFlow
from omnistage.server.realtime.settings import (
    Modality,
    RealtimeSettings,
    Settings,
    TranscriptionSettings,
)
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.transcription import check_hears
from omnistage.stage_configs.graph_parts import session_outputs

Kind = Literal["realtime", "transcription"]


def default_settings(runtime: Runtime, kind: Kind, model: str | None = None) -> Settings:
    """Return the settings of a session of which nothing is known; ApiError for another model."""
    if kind == "transcription":
        check_hears(runtime.graph)
        return TranscriptionSettings()
    check_makes("text", runtime.graph.outputs, "text")
    _check_model(runtime, model)
    modality: Modality = "audio" if "audio" in session_outputs(runtime.graph) else "text"
    return RealtimeSettings(model=model, output_modalities=[modality])


def check_settings(flow: ChatFlow, settings: Settings) -> None:
    """Raise ApiError for settings that a server cannot do."""
    if not isinstance(settings, RealtimeSettings):
        return
    _check_model(flow.runtime, settings.model)
    for modality in settings.output_modalities:
        check_makes(modality, session_outputs(flow.runtime.graph), modality)
    flow.speaker_of(settings.audio.output.voice, "session.audio.output.voice")


def _check_model(runtime: Runtime, model: str | None) -> None:
    adapters = [lora.name for lora in runtime.fleet.loras]
    check_model(model, runtime.graph.served_names, adapters)

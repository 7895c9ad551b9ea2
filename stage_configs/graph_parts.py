"""The parts of a graph that no edge joins: a transcriber, a text model and a speech model.

A session of /v1/realtime drives them, one after the other (server/realtime/).
"""

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.kinds import Kind

TRANSCRIPT = "transcript"


def chat_outputs(graph: StageGraph) -> list[str]:
    """Return the outputs that a chat's answer may have: those that are made from its text."""
    if "text" not in graph.outputs:
        return []
    entry = graph.entry_of("text")
    return [output for output in graph.outputs if graph.entry_of(output) == entry]


def has_speech_apart(graph: StageGraph) -> bool:
    """Return whether a model that speaks given texts stands beside one that answers chats."""
    return "text" in graph.outputs and "audio" not in chat_outputs(graph) and reads_out(graph)


def session_outputs(graph: StageGraph) -> list[str]:
    """Return the outputs that an answer of a session may have: a chat's, or speech of its words."""
    return [*chat_outputs(graph), *(["audio"] if has_speech_apart(graph) else [])]


def chat_hears(graph: StageGraph) -> bool:
    """Return whether the model that answers chats takes audio."""
    return "text" in graph.outputs and _entry_kind(graph, "text").hears


def takes_speech(graph: StageGraph) -> bool:
    """Return whether some model of the graph takes audio: a transcriber, or that of the chats."""
    return TRANSCRIPT in graph.outputs or chat_hears(graph)


def reads_out(graph: StageGraph) -> bool:
    """Return whether a model of the graph speaks a given text."""
    return "audio" in graph.outputs and _entry_kind(graph, "audio").reads_out


def generates_audio(graph: StageGraph) -> bool:
    """Return whether a pipeline of the graph makes audio of a description: no speech of a text."""
    if "audio" not in graph.outputs or reads_out(graph):
        return False
    return graph.outputs["audio"] == graph.entry_of("audio")


def _entry_kind(graph: StageGraph, output: str) -> Kind:
    return KINDS[graph.stages[graph.entry_of(output)].kind]

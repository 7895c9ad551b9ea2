"""Images of words, or of images and words."""

from omnistage.server.errors import ApiError
from omnistage.server.http.served import check_makes
from omnistage.stage_configs.graph import StageGraph


def check_draws(graph: StageGraph, output: str = "image", name: str = "images") -> None:
    """Raise ApiError for a graph that makes none of them, or only of what it writes itself."""
    check_makes(output, graph.outputs, name)
    if graph.waits_for(output):
        message = "This model draws what it writes: ask it in a chat, for text and image."
        raise ApiError(400, message, code="unsupported_model")

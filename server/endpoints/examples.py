"""Bodies for the API's description: the server answers each of them."""

from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import chat_outputs, generates_audio
from omnistage.stage_configs.json_types import Json, JsonMap

RED_SQUARE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAALUlEQVR4nGO8IyLHQEvARF"
    "PTRy0YtWDUglELRi0YtWDUglELRi0YtWDUAioCAFlUAU6scF4KAAAAAElFTkSuQmCC"
)


def chat_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that answers in text, and perhaps in speech, or in
    images.
    """
    if "text" not in graph.outputs:
        return _drawing_examples(graph)
    asked = {"model": graph.served_name, "max_completion_tokens": 64}
    question = [{"role": "user", "content": "Who are you?"}]
    parts = [
        {"type": "image_url", "image_url": {"url": RED_SQUARE}},
        {"type": "text", "text": "What color is the square?"},
    ]
    examples: Json = {
        "text": {**asked, "messages": question},
        "streamed": {
            **asked,
            "messages": question,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    }
    if "audio" in chat_outputs(graph):  # an omni model: it sees too
        spoken = {"modalities": ["text", "audio"], "audio": {"format": "wav"}}
        examples["speech"] = {**asked, "messages": question, **spoken}
        examples["a picture"] = {**asked, "messages": [{"role": "user", "content": parts}]}
    return examples


def image_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that makes images."""
    if "image" not in graph.outputs:
        return {}
    return {"a picture": {"model": graph.served_name, "prompt": "A red square.", "size": "256x256"}}


def edit_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that makes images of images."""
    if "image" not in graph.outputs:
        return {}
    return {"a colour": {"prompt": "A blue square.", "images": [{"image_url": RED_SQUARE}]}}


def video_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that makes videos."""
    if "video" not in graph.outputs:
        return {}
    size = {"width": 256, "height": 256}
    return {
        "a video": {"model": graph.served_name, "prompt": "A red square.", "num_frames": 9, **size}
    }


def job_examples(graph: StageGraph) -> JsonMap:
    """Returns the jobs that can be asked of a graph that makes videos."""
    if "video" not in graph.outputs:
        return {}
    asked = {"model": graph.served_name, "prompt": "A red square."}
    return {"a video job": {**asked, "seconds": "1", "size": "256x256"}}


def _drawing_examples(graph: StageGraph) -> JsonMap:
    if "image" not in graph.outputs:
        return {}
    wish = {"messages": [{"role": "user", "content": "A red square."}], "modalities": ["image"]}
    return {"a drawing": {"model": graph.served_name, **wish, "size": "256x256"}}


def speech_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that speaks."""
    if "audio" not in graph.outputs or generates_audio(graph):
        return {}
    return {"a sentence": {"model": graph.served_name, "input": "Hello.", "response_format": "wav"}}


def audio_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that makes audio of a description."""
    if not generates_audio(graph):
        return {}
    return {"rain": {"model": graph.served_name, "input": "Rain on a tin roof.", "audio_length": 2}}


def response_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that answers in text or draws, in OpenAI's newer
    shape.
    """
    if "text" not in graph.outputs and "image" in graph.outputs:
        tool = {"type": "image_generation", "size": "256x256"}
        wish = {"model": graph.served_name, "input": "A red square.", "tools": [tool]}
        return {"a drawing": wish}
    if "text" not in graph.outputs:
        return {}
    asked = {"model": graph.served_name, "input": "Who are you?", "max_output_tokens": 64}
    return {"a response": asked, "a streamed response": {**asked, "stream": True}}


def token_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph whose entry stage has a tokenizer."""
    if not {"text", "embedding"} & graph.outputs.keys():
        return {}
    return {"a text": {"model": graph.served_name, "prompt": "Hello."}}


def ids_examples(graph: StageGraph) -> JsonMap:
    """Returns what such a graph can be asked for the other way round."""
    if not {"text", "embedding"} & graph.outputs.keys():
        return {}
    return {"tokens": {"model": graph.served_name, "tokens": [72, 105]}}


def embedding_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that makes vectors."""
    if "embedding" not in graph.outputs:
        return {}
    return {"two texts": {"model": graph.served_name, "input": ["A fox.", "A dog."]}}


def text_examples(graph: StageGraph) -> JsonMap:
    """Returns what can be asked of a graph that goes on with a text."""
    if "text" not in graph.outputs:
        return {}
    return {"a beginning": {"model": graph.served_name, "prompt": "Once upon", "max_tokens": 16}}


def secret_examples(graph: StageGraph) -> JsonMap:
    """Returns client secrets of a graph that can hold a conversation."""
    if "text" not in graph.outputs:
        return {}
    session = {"type": "realtime", "model": graph.served_name, "instructions": "Be brief."}
    return {"a session": {"expires_after": {"seconds": 60}, "session": session}}


def beta_examples(graph: StageGraph) -> JsonMap:
    """Returns client secrets by the beta's flat fields."""
    if "text" not in graph.outputs:
        return {}
    return {"a session": {"input_audio_format": "pcm16", "turn_detection": None}}

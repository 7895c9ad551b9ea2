"""A transcriber, a text model and a speech model that no edge joins, as fake stages."""

from typing import Any

from support.gateway.serving import MODEL

from omnistage.stages.messages.to_gateway import Speech

STAGES = {
    "transcriber": {"kind": "vllm.transcriber"},
    "thinker": {"kind": "vllm.text"},
    "talker": {"kind": "qwen3_tts.talker"},
    "code2wav": {"kind": "qwen3_tts.code2wav"},
}
CASCADE: dict[str, Any] = {
    "model": MODEL,
    "stages": STAGES,
    "edges": [{"from": "talker", "to": "code2wav"}],
    "outputs": {"transcript": "transcriber", "text": "thinker", "audio": "code2wav"},
}
TRANSCRIBER: dict[str, Any] = {
    "model": MODEL,
    "stages": {"transcriber": STAGES["transcriber"]},
    "edges": [],
    "outputs": {"transcript": "transcriber"},
}
SPEECH = Speech(takes_pieces=True, max_text=400)

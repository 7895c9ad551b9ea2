"""How the messages of one engine become a prompt: its template, and vLLM's own renderer."""

from collections.abc import Mapping
from typing import Any

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.vllm.compat import AsyncLLM, OnlineRenderer, accepted
from omnistage.stages.vllm.media.frames import UNASKED, samples_as_asked
from omnistage.stages.vllm.media.media import use_received_media
from omnistage.stages.worker.failure import RequestError

STRICT = "tool_strict_level"


class Rendering:
    """Shared by all that reads messages, so that the same ones are the same prompt everywhere."""

    def __init__(self, engine: AsyncLLM, options: JsonMap) -> None:
        use_received_media()
        self._samples_as_asked = samples_as_asked(engine.model_config)
        self.template: dict[str, Any] = {
            "chat_template": None,
            "chat_template_content_format": "auto",
            "trust_request_chat_template": False,
            "enable_auto_tools": False,
            "tool_parser": None,
            "default_chat_template_kwargs": None,
            **options,
        }
        renderer_options = {
            **self.template,
            "model_config": engine.model_config,
            "renderer": engine.renderer,
            "request_logger": None,
            "trust_request_mm_kwargs": True,  # the gateway lets few pass
        }
        self.renderer = OnlineRenderer(**accepted(OnlineRenderer, renderer_options))
        # Of calls that must be made, whose arguments follow their schemas: elsewhere vLLM holds
        # to its schema only a tool that says `strict: true`.
        renderer_options |= {STRICT: "parameter"}
        self.strict_renderer = OnlineRenderer(**accepted(OnlineRenderer, renderer_options))
        known = getattr(engine.renderer.tokenizer, "chat_template", None)
        self._knows_developer = "developer" in str(self.template["chat_template"] or known)

    def check(self, body: Mapping[str, object]) -> None:
        """Raise RequestError for what a body says of its media and vLLM would not hear of."""
        if "media_io_kwargs" in body and not self._samples_as_asked:
            raise RequestError(400, UNASKED, param="media_io_kwargs", code="unsupported_parameter")

    def message(self, message: JsonMap) -> JsonMap:
        """A developer is a system to a template that does not know him: it would leave him out."""
        is_unknown = message["role"] == "developer" and not self._knows_developer
        return {**message, "role": "system"} if is_unknown else message

"""The thinker stage: text out, and what the talker needs: token ids and a few hidden rows."""

from collections.abc import Sequence

from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel

from omnistage.stages.messages.body import GivenText
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.given_text import Qwen3OmniGivenText
from omnistage.stages.qwen3_omni.speech import SpokenTokens
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, media_ids
from omnistage.stages.qwen3_omni.thinker_model import thinker_config
from omnistage.stages.speech.thinker_stage import ThinkerEngine, ThinkerStage
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.request_options import ExportedRows
from omnistage.stages.worker.requests.coming_text import ComingText, ComingTexts
from omnistage.stages.worker.stage import Downstream, StagePorts

THINKER = ModelPart("thinker.", Qwen3OmniMoeThinkerTextModel)


class Thinker(ThinkerStage[SpokenTokens]):
    """Answers; a given text goes to the talker without the engine, while it comes if need be."""

    spoken_class = SpokenTokens
    speech = Speech(takes_pieces=True)

    def __init__(self, ports: StagePorts) -> None:
        super().__init__(ports)
        ids = SpeechIds.of(self._config) if self._has_talker else None
        self._given = None if ids is None else Qwen3OmniGivenText(ports.model, ids)
        self._texts = ComingTexts()  # those of which more may come

    @property
    def parts(self) -> ThinkerEngine:
        """The tap is of the thinker's text model."""
        return ThinkerEngine(thinker_config, THINKER, media_ids(self._config))

    def exported(
        self, prompt_ids: Sequence[int], edges: Sequence[Downstream]
    ) -> ExportedRows | None:
        """The rows of media, unless an edge wants those of every position."""
        if any(edge.all_hidden_states for edge in edges):
            return ExportedRows()
        # By id, not by placeholder: to the talker a marker that a user wrote is a medium too.
        if set(self._media_ids).isdisjoint(prompt_ids):
            return None
        return ExportedRows(ids=self._media_ids)

    def more_text(self, request_id: str, text: str, last: bool) -> None:
        """The next piece of a given text."""
        self._texts.add(request_id, text, last)

    async def read_out(self, request_id: str, request: Request, body: GivenText) -> int:
        """The talker needs no more than the text's tokens."""
        assert self._given is not None
        spoken = self._spoken(request_id, request)
        if body.is_open:
            return await self._read_pieces(request_id, body, spoken)
        prompt_ids = self._given.prompt(body.text, body.instructions)
        for one in spoken:
            one.open_whole(prompt_ids)
        return len(prompt_ids)

    async def _read_pieces(
        self, request_id: str, body: GivenText, spoken: Sequence[SpokenTokens]
    ) -> int:
        """Have a text spoken while it comes; how many tokens it has with its prompt."""
        assert self._given is not None
        text = self._texts.open(request_id, body)
        try:
            prompt_ids = self._given.prompt("", body.instructions)
            for one in spoken:
                one.open(prompt_ids, [])
            return len(prompt_ids) + await self._speak(request_id, text, spoken)
        finally:
            self._texts.close(request_id)

    async def _speak(
        self, request_id: str, text: ComingText, spoken: Sequence[SpokenTokens]
    ) -> int:
        """Give the talkers each token as soon as it is known; how many there were."""
        assert self._given is not None

        def show_life() -> None:
            for one in spoken:
                one.show_life()

        def say(token_ids: list[int]) -> None:
            self._ports.mark(request_id, "first_token")
            self._ports.send_marks(request_id)
            for one in spoken:
                one.say(token_ids)

        tokens = self._given.coming()
        async for piece in text.pieces(self._ports.deadlines.next_chunk_s / 2, show_life):
            if token_ids := tokens.add(piece):
                say(token_ids)
        say(tokens.finish())
        for one in spoken:
            one.finish()
        return tokens.count

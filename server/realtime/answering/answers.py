"""The responses that a session has under way: one of its conversation, and some out of band."""

from collections.abc import Callable, Sequence

from omnistage.server.common.errors import ApiError, unsupported
from omnistage.server.common.served import check_makes
from omnistage.server.realtime.ahead.answer_ahead import AnswerAhead
from omnistage.server.realtime.ahead.history_ahead import HistoryAhead
from omnistage.server.realtime.answer_plan import AnswerPlan
from omnistage.server.realtime.answering.answer import RealtimeAnswer
from omnistage.server.realtime.answering.response import Response
from omnistage.server.realtime.common import Common
from omnistage.server.realtime.context import ContextTruncation, TokenRates
from omnistage.server.realtime.items import Item
from omnistage.server.realtime.settings import (
    RealtimeSettings,
    Settings,
    TranscriptionSettings,
)
from omnistage.server.realtime.transcripts import Transcripts
from omnistage.server.realtime.updates import response_settings
from omnistage.stage_configs.graph_parts import session_outputs
from omnistage.stage_configs.json_types import JsonMap

MAX_OUT_OF_BAND = 4

Refuse = Callable[[ApiError], None]


class Answers:
    """The responses of one session, and the one that it owes to a turn."""

    def __init__(
        self,
        common: Common,
        settings: Callable[[], Settings],
        tell_error: Refuse,
        transcripts: Transcripts,
    ) -> None:
        self.active: RealtimeAnswer | None = None  # of the conversation
        self.on_end: Callable[[Response], None] = lambda _: None
        """Called when the conversation's response has ended of itself."""
        self._common = common
        self._settings = settings
        self._tell_error = tell_error
        self._ahead = AnswerAhead(common)
        self._transcripts = transcripts
        self.history = HistoryAhead(common, self._history_plan)
        self._out_of_band: dict[str, RealtimeAnswer] = {}
        self._is_owed = False
        self._rates = TokenRates()

    def _check_free(self, given: JsonMap) -> None:
        """Raise ApiError if a response with these fields cannot begin now."""
        if given.get("conversation") == "none":
            if len(self._out_of_band) >= MAX_OUT_OF_BAND:
                message = f"The session already has {MAX_OUT_OF_BAND} responses out of band."
                raise ApiError(400, message, code="too_many_responses")
        elif self.active is not None and not self.active.is_over:
            response_id = self.active.response.id
            message = (
                "Conversation already has an active response in progress: "
                f"{response_id}. Wait until the response is finished before creating a new one."
            )
            raise ApiError(400, message, code="conversation_already_has_active_response")

    def begin(self, given: JsonMap, items: Sequence[Item] | None = None) -> None:
        """Begin a response, to the conversation or to given items; raises ApiError."""
        common, session = self._common, self._settings()
        if isinstance(session, TranscriptionSettings):
            raise unsupported("type", "response.create in a transcription session")
        self._check_free(given)
        chat = common.conversation.context if items is None else items
        plan = self._plan(session, given, chat)
        settings = plan.settings
        is_out_of_band = settings.conversation == "none"
        conversation = None if is_out_of_band else common.conversation
        response = Response(settings, conversation, common.conversation_id, common.tell)
        truncation = None
        if items is None:
            about = (session, settings, common.flow.runtime)
            truncation = ContextTruncation(common.conversation, self._rates, *about)
        held = None if is_out_of_band else self._ahead.take(plan)
        if not is_out_of_band:
            self.history.stop()
        answer = RealtimeAnswer(response, common, plan, self._transcripts, truncation, held)
        if is_out_of_band:
            self._out_of_band[response.id] = answer
        else:
            self.active, self._is_owed = answer, False
        task = answer.start()
        task.add_done_callback(lambda _: common.tasks.run(lambda: self._end(answer)))

    def _plan(self, session: RealtimeSettings, given: JsonMap, items: Sequence[Item]) -> AnswerPlan:
        """Return the plan of an answer to items; raises ApiError."""
        settings = response_settings(session, given)
        flow = self._common.flow
        for modality in settings.output_modalities:
            check_makes(modality, session_outputs(flow.runtime.graph), modality)
        voice = settings.audio.output.voice
        speaker = flow.speaker_of(voice, "response.audio.output.voice")
        return AnswerPlan.of(settings, session.model, speaker, items)

    def begin_ahead(self, item: Item) -> None:
        """Begin the answer to an item that may be the next, in secret."""
        plan = self._free_plan([item])
        if plan is not None:
            self._ahead.begin(item.id, plan)

    def _history_plan(self) -> AnswerPlan | None:
        return self._free_plan([])

    def _free_plan(self, more: Sequence[Item]) -> AnswerPlan | None:
        """Return the plan of the next answer; None while there is one, or if there will be none.

        One to words alone waits for transcripts: nothing of it is begun.
        """
        if not self._common.flow.hears:
            return None
        session = self._settings()
        is_free = self.active is None or self.active.is_over
        if not is_free or self._is_owed or not isinstance(session, RealtimeSettings):
            return None
        try:
            return self._plan(session, {}, [*self._common.conversation.context, *more])
        except ApiError:  # it is reported by the answer
            return None

    def drop_ahead(self) -> None:
        """Cancel the answer that was begun in secret: what it answers has changed."""
        self._ahead.drop()

    def _end(self, answer: RealtimeAnswer) -> None:
        self._out_of_band.pop(answer.response.id, None)
        if self.active is answer:
            self.active = None
            if answer.is_complete:
                self.history.note_read()
            self.on_end(answer.response)
        self._pay()

    def owe(self) -> None:
        """Answer a turn, once nothing else is answered; its refusal is told."""
        self._is_owed = True
        self._pay()

    def _pay(self) -> None:
        is_free = self.active is None or self.active.is_over
        if self._is_owed and is_free:
            self._is_owed = False
            if isinstance(self._settings(), RealtimeSettings):
                try:
                    self.begin({})
                except ApiError as error:
                    self._tell_error(error)

    def take_active(self) -> RealtimeAnswer | None:
        """Return the conversation's response if one is under way: it is so no more."""
        answer, self.active = self.active, None
        return None if answer is None or answer.is_over else answer

    def cancel(self, response_id: str | None) -> None:
        """End a response for the client; without an id the conversation's. Raises ApiError."""
        if response_id in (None, None if self.active is None else self.active.response.id):
            answer = self.take_active()
        else:
            answer = self._out_of_band.get(response_id or "")
        if answer is None or answer.is_over:
            message = "Cancellation failed: no active response found"
            raise ApiError(400, message, code="response_cancel_not_active")
        answer.cancel("client_cancelled")

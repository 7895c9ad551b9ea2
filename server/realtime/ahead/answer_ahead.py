"""Answers that are made while a turn may have ended, and reported once it has.

At the first silence of a turn its answer is begun in secret. Nobody sees anything of it before the
turn has ended: no event, no item, no usage, no count. If speech goes on, it is cancelled.
"""

import asyncio

from omnistage.server.realtime.ahead.held_chat import HeldChat
from omnistage.server.realtime.answer_plan import AnswerPlan
from omnistage.server.realtime.common import Common

MAX_WAIT_S = 5.0  # for the end of the turn
MAX_AT_ONCE = 2  # beginnings of a turn, whatever the pauses
MORE_PER_S = 0.5  # further ones, since its last: a long turn has pauses in it


class AnswerAhead:
    """The answer that one session makes ahead of the end of a turn, if it makes one."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._held: tuple[AnswerPlan, HeldChat] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._item_id: str | None = None
        self._allowed = 0.0  # beginnings, for this item
        self._begun_at = 0.0

    def begin(self, item_id: str, plan: AnswerPlan) -> None:
        """Begin the answer to an item that is not there yet, unless the server is busy."""
        now = asyncio.get_running_loop().time()
        if item_id != self._item_id:
            self._item_id, self._allowed, self._begun_at = item_id, MAX_AT_ONCE, now
        allowed = min(MAX_AT_ONCE, self._allowed + MORE_PER_S * (now - self._begun_at))
        if allowed < 1 or not self._common.ahead.may_answer:
            return
        self.drop()
        self._allowed, self._begun_at = allowed - 1, now
        chat = HeldChat(self._common.new_answer(), plan.outputs(self._common.flow))
        chat.start(self._common)
        self._held = plan, chat
        self._expiry = asyncio.get_running_loop().call_later(MAX_WAIT_S, self.drop)

    def take(self, plan: AnswerPlan) -> HeldChat | None:
        """Return the answer if it was made by the same plan; another one is cancelled."""
        if self._held is None:
            return None
        (held_plan, chat), self._held = self._held, None
        self._stop_timer()
        if held_plan.is_same(plan) and not chat.is_broken:
            self._common.ahead.count("used")
            return chat
        self._cancel(chat)
        return None

    def drop(self) -> None:
        """Cancel the answer, if one is held: nothing of it is left."""
        if self._held is not None:
            (_, chat), self._held = self._held, None
            self._stop_timer()
            self._cancel(chat)

    def _cancel(self, chat: HeldChat) -> None:
        chat.cancel()
        self._common.ahead.count("failed" if chat.is_broken else "cancelled")

    def _stop_timer(self) -> None:
        assert self._expiry is not None
        self._expiry.cancel()

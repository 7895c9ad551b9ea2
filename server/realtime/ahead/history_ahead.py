"""The history of a session, read ahead of the answer to what is still said.

New items, an update, a deleted item, an answer that was cut: a request of one token reads them. The
answer finds them in the prefix cache then, with the rows that a talker needs.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from omnistage.server.common.errors import ApiError
from omnistage.server.common.trace import following
from omnistage.server.realtime.answer_plan import AnswerPlan
from omnistage.server.realtime.common import Common

logger = logging.getLogger(__name__)

SETTLING_S = 0.05  # after a change, within which others may follow


class HistoryAhead:
    """Reads the history of one session once it has changed, one version at a time.

    `plan`: makes the plan of an answer to what is there; None where nothing is to be read.
    """

    def __init__(self, common: Common, plan: Callable[[], AnswerPlan | None]) -> None:
        self._common = common
        self._plan = plan
        self._known: tuple[Any, ...] | None = None  # the prompt that was read last
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None

    def note_read(self) -> None:
        """Note that an answer has read what is there, and written its end."""
        plan = self._plan()
        self._known = None if plan is None else plan.prompt

    def read_soon(self) -> None:
        """Read what has changed, unless an answer begins before."""
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(SETTLING_S, self._read)

    def stop(self) -> None:
        """Read no more: an answer reads it, or nobody needs it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _read(self) -> None:
        self._timer = None
        plan = self._plan()
        if plan is None or plan.is_empty or plan.prompt == self._known:
            return
        if self._common.ahead.may_read and not self._common.tasks.is_closed:
            self._reading = self._common.tasks.begin(self._run(plan))

    async def _run(self, plan: AnswerPlan) -> None:
        state = self._common.new_answer()
        state.trace.held_back = []  # no client asked for it
        try:
            with following(state.trace):
                await plan.read(self._common.flow)
        except ApiError as error:  # an answer reports it, if there is one
            logger.debug("a history was not read ahead: %s", error)
        except Exception:
            logger.exception("a history could not be read ahead")
        else:
            self._known = plan.prompt

"""Calls that an agent's own terminal is asked about at the same time as the space.

Where a person sits at the terminal, its dialog and the space race; the first answer counts. A yes
there is not told: only what the agent says later settles it, so the card says that it may have been
answered there. A call waits here from its first hook (``PreToolUse``) until the hook of its dialog
(``PermissionRequest``) has come for the answer, which does not say the id of the call.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.doors.permit import Answer, Denied, Door, HostCall, Permitted, Why
from meup_agent.errors import MeupError
from meup_agent.protocol.wire import payloads

if TYPE_CHECKING:
    from meup_agent.doors.hooks import HookInput

log = logging.getLogger("meup_agent.doors")

FIRST_SECONDS: Final = 1.0
"""Time for the space alone, before the terminal asks as well: rules answer within it."""

UNHEARD_SECONDS: Final = 15.0
"""Wait for the terminal's dialog to open; without one the terminal alone decides."""

SETTLE_SECONDS: Final = 5.0
"""Wait for the gateway to take a withdraw with its reason."""

MAX_LEFT: Final = 256
"""Permits that wait for what their agents say later; of older ones nothing is reported."""

ANSWERED_THERE: Final = "answered at its agent's terminal"
"""The reason of a withdraw: the agent has gone on, so its terminal was answered."""


@dataclass(eq=False)
class RacedCall:
    """A call that waits for both.

    Attributes:
        hook: The hook by which it came.
        heard: Its dialog has come for the answer.
        taken: The answer was handed on to its host, or that is gone.
        ended: There is an answer, or there will be none.
        answer: The answer.
        is_left: Its host has gone without the answer.
        had_dialog: That was its dialog.
    """

    hook: HookInput
    call: HostCall
    heard: anyio.Event = field(default_factory=anyio.Event)
    taken: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_left: bool = False
    had_dialog: bool = False

    async def wait_for(self, *, is_dialog: bool) -> Answer | None:
        """The answer, for its host; ``None``: there is none yet, and its dialog comes for it.

        Cancelled, its host is gone or gives up, and it is taken back.
        """
        if is_dialog:
            self.heard.set()
            self.had_dialog = True
        self.is_left = True
        try:
            with anyio.move_on_after(math.inf if is_dialog else FIRST_SECONDS):
                await self.ended.wait()
            self.is_left = False
        finally:
            if self.is_left:
                self.scope.cancel()
            if self.is_left or self.answer is not None:
                self.heard.set()
                self.taken.set()
        return self.answer


DECISIONS: Final = frozenset({Why.REJECTED, Why.EDITED, Why.RUN_BEFORE, Why.ELSEWHERE})
"""Denials that the terminal is not asked about any more."""


def is_decision(answer: Denied) -> bool:
    """True for a denial that somebody meant; others leave a call to the terminal."""
    return answer.why in DECISIONS


class TerminalRace:
    """The calls of one door that wait for both.

    Args:
        door: The door.
        untold: Called with a permit that no dialog has come for.
    """

    def __init__(self, door: Door, untold: Callable[[str], object]) -> None:
        self._door = door
        self._untold = untold
        self._calls: list[RacedCall] = []
        # Permits whose dialogs had gone: they were answered there, by a yes or a no.
        self._left: deque[tuple[HookInput, str]] = deque(maxlen=MAX_LEFT)

    def __len__(self) -> int:
        """The calls that wait."""
        return len(self._calls)

    def enter(self, hook: HookInput) -> RacedCall:
        """A call that begins to wait; then :meth:`wait` has the space decide it."""
        assert hook.call is not None
        raced = RacedCall(hook, replace(hook.call, terminal=True))
        self._calls.append(raced)
        return raced

    async def wait(self, raced: RacedCall, ttl: float) -> None:
        """Have the space decide a call, while its host waits, or its dialog may still come."""
        try:
            with raced.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._end_unheard, raced)
                    raced.answer = await self._door.ask(raced.call, ttl=ttl)
                    tasks.cancel_scope.cancel()
            raced.ended.set()
            with anyio.move_on_after(UNHEARD_SECONDS):
                await raced.taken.wait()
        except* MeupError as group:
            log.warning("a call is left to its terminal: %s", group.exceptions[0])
        finally:
            raced.ended.set()
            self._calls.remove(raced)
            is_told = raced.taken.is_set() and not raced.is_left
            if isinstance(raced.answer, Permitted) and not is_told:
                if raced.is_left and raced.had_dialog:
                    self.leave(raced.hook, raced.answer.proposal)
                else:
                    self._untold(raced.answer.proposal)

    async def _end_unheard(self, raced: RacedCall) -> None:
        await anyio.sleep(UNHEARD_SECONDS)
        if not raced.heard.is_set():
            raced.scope.cancel()

    def claim(self, hook: HookInput) -> RacedCall | None:
        """The call that a dialog is about; ``None``: none waits for it."""
        for each in self._calls:
            if not each.heard.is_set() and _is_same(each.hook, hook):
                each.heard.set()
                return each
        return None

    def leave(self, hook: HookInput, proposal: str) -> None:
        """Note a permit that its dialog did not hear of: what its agent says later settles it."""
        self._left.append((hook, proposal))

    async def settle(self, agent: str, hook: HookInput) -> None:
        """Take back what an agent must have gone on from, since it says this."""
        for left in tuple(self._left):
            asked, proposal = left
            if asked.call is not None and asked.call.agent == agent and _is_over(asked, hook):
                self._left.remove(left)
                if hook.report is None:  # else it ran there, and is reported
                    self._untold(proposal)
        for each in tuple(self._calls):
            if each.call.agent != agent or each.answer or not _is_over(each.hook, hook):
                continue
            try:
                with anyio.move_on_after(SETTLE_SECONDS):
                    if await self._door.take_back(each.call, ANSWERED_THERE):
                        continue
            except MeupError as error:
                log.info("a call is taken back without its reason: %s", error)
            each.scope.cancel()


def _is_same(asked: HookInput, other: HookInput) -> bool:
    """True if two hooks are about one call; a dialog does not say the call's id."""
    one, two = asked.call, other.call
    if one is None or two is None or (one.agent, one.session) != (two.agent, two.session):
        return False
    if one.call_id and two.call_id:
        return one.call_id == two.call_id
    same = payloads.is_same_json(one.arguments, two.arguments)
    return asked.worker == other.worker and one.tool == two.tool and same


def _is_over(asked: HookInput, said: HookInput) -> bool:
    """True if a call is answered by the time at which its agent says something."""
    if asked.session != said.session:
        return False
    if said.ends_session or (said.report is not None and _is_same(asked, said)):
        return True
    # An agent asks for its calls one after the other within a prompt, but for those of workers.
    is_later = said.ends_turn or (bool(said.prompt) and said.prompt != asked.prompt)
    return asked.worker == said.worker and is_later

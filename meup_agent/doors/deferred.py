"""Calls that wait for a decision for one host or several, or without one that comes back for it.

Several hosts that ask about one call, with two tokens of a participant say, have one proposal; it
is taken back as the last of them is gone.

Claude Code without a terminal takes the answer *defer*: it ends, its call undone, and asks again
under the same id once its session is resumed. In between the proposal stays open, for days. Its
permit is handed out once, to the first host that comes for it, also after a new start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.doors.permit import Answer, Door, HostCall, Permitted
from meup_agent.doors.terminal_race import is_decision
from meup_agent.errors import MeupError

if TYPE_CHECKING:
    from meup_agent.doors.hooks import HookInput

log = logging.getLogger("meup_agent.doors")

KEPT_SECONDS: Final = 7 * 86_400.0
"""Time for which an answer is kept for its host to come back; then the call did not run."""


@dataclass(eq=False)
class DeferredCall:
    """A call that waits with its host or without it.

    Attributes:
        hook: The hook by which it came.
        may_leave: Its host may be told to come back.
        hosts: Hosts that wait for its answer now.
        is_deferred: A host was told to come back.
    """

    hook: HookInput
    may_leave: bool = True
    ended: anyio.Event = field(default_factory=anyio.Event)
    taken: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    hosts: int = 0
    is_deferred: bool = False

    async def wait_for(self, seconds: float) -> bool:
        """Wait for the answer; ``False``: there is none yet, and its host is to come back.

        Cancelled, its host is gone or gives up; without another one the call is taken back.
        """
        self.hosts += 1
        is_left = True
        try:
            with anyio.move_on_after(seconds):
                await self.ended.wait()
            is_left = False
        finally:
            self.hosts -= 1
            if is_left and not self.hosts:
                self.scope.cancel()
        if not self.ended.is_set():
            self.is_deferred = True
        return self.ended.is_set()

    @property
    def call(self) -> HostCall:
        """The call."""
        assert self.hook.call is not None
        return self.hook.call


class DeferredCalls:
    """The calls of one door that wait for hosts.

    Args:
        door: The door.
        untold: Called with a permit that no host has come for.
    """

    def __init__(self, door: Door, untold: Callable[[str], object]) -> None:
        self._door = door
        self._untold = untold
        self._calls: dict[tuple[str, str, str], DeferredCall] = {}

    def __len__(self) -> int:
        """Those whose hosts may leave: they wait, or are decided and not asked for yet."""
        return sum(each.may_leave for each in self._calls.values())

    async def find(self, call: HostCall) -> DeferredCall | None:
        """The call that a host comes back for, or another one waits for; ``None``: it is new.

        One that is taken back has no answer for a host that asks after that: its end is awaited.
        """
        while call.key is not None and (found := self._calls.get(call.key)) is not None:
            if found.ended.is_set() or not found.scope.cancel_called:
                return found
            await found.ended.wait()
        return None

    def enter(self, hook: HookInput, *, may_leave: bool) -> DeferredCall:
        """A call that begins to wait; then :meth:`wait` has the space decide it."""
        entered = DeferredCall(hook, may_leave)
        assert entered.call.key is not None
        self._calls[entered.call.key] = entered
        return entered

    async def wait(self, deferred: DeferredCall, ttl: float | None) -> None:
        """Have the space decide a call, and keep its decision until a host has come for it."""
        call = deferred.call
        assert call.key is not None

        def is_away() -> bool:
            return deferred.is_deferred and not deferred.hosts

        try:
            with deferred.scope:
                deferred.answer = await self._door.ask(
                    call, ttl=ttl, is_away=is_away if deferred.may_leave else None
                )
                deferred.ended.set()
                # One that nobody decided is asked about anew, once its host comes back.
                if isinstance(deferred.answer, Permitted) or is_decision(deferred.answer):
                    with anyio.move_on_after(KEPT_SECONDS):
                        await deferred.taken.wait()
            # Not where the door itself ends: a later one hands it out.
            if isinstance(deferred.answer, Permitted) and not deferred.taken.is_set():
                self._untold(deferred.answer.proposal)
        except MeupError as error:
            log.warning("a call of %s is not decided: %s", call.agent, error)
        finally:
            deferred.ended.set()
            del self._calls[call.key]

    async def take(
        self, call: HostCall, deferred: DeferredCall, seconds: float
    ) -> Answer | DeferredCall | None:
        """The answer, for one host; the call itself: there is none yet, and it is to come back."""
        other = self._door.differs(call, deferred.call)
        if other is not None:
            return other
        if not await deferred.wait_for(seconds):
            return deferred
        deferred.taken.set()
        answer = deferred.answer
        is_kept = isinstance(answer, Permitted) and answer.kept
        if answer is None or not (deferred.is_deferred or is_kept):
            return answer
        # Two that resume one session do not both run its call.
        return await self._door.spend(call, answer)

    def leave(self) -> None:
        """Forget what no host has come for: the space knows it, and tells a later door of it."""
        for each in self._calls.values():
            each.taken.set()

    def settle(self, agent: str, hook: HookInput) -> None:
        """Take back what an agent has gone on without: of several at once it asks one again."""
        for each in tuple(self._calls.values()):
            is_its = (agent, hook.session, hook.worker) == each.call.asker
            if is_its and hook.ends_turn and each.is_deferred and not each.hosts:
                each.scope.cancel()

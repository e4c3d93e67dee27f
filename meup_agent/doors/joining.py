"""A door whose gateway may come later: its host is served at once, and what it asks waits."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.client.proposal import Ttl, resolve_ttl
from meup_agent.doors.permit import Answer, Denied, Door, HostCall, Why
from meup_agent.mcp.sdk import decisions
from meup_agent.session import Settings
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.protocol.wire.outcomes import PermitReport

log = logging.getLogger("meup_agent.doors")

UNHEARD_SECONDS: Final = 5.0
"""Until it is logged that no gateway has answered."""


class JoiningDoor:
    """A door that joins a space while its host is served.

    Args:
        name: The name of its agent, for logs.
        ttl: Seconds that a call waits for a decision, for the gateway included.
        to: The participants that should decide; empty: any that may.
        settings: Settings of its session.
    """

    def __init__(
        self,
        name: str,
        *,
        ttl: Ttl = "space",
        to: Iterable[str] = (),
        settings: Settings | None = None,
    ) -> None:
        self._settings = replace(settings or Settings(), first_welcome=None)
        self._door = Door(name)
        self._ttl = resolve_ttl(ttl, self._settings.ttl)
        self._to = tuple(to)
        self._joined = anyio.Event()

    async def stay(self, *args: Any, **options: Any) -> None:
        """Join as :meth:`Door.join` does, and stay; raises why it is not in the space any more."""
        async with background_tasks() as tasks:
            tasks.start_soon(self._warn)
            async with self._door.join(*args, **options, settings=self._settings):
                self._joined.set()
                await anyio.sleep_forever()

    async def _warn(self) -> None:
        with anyio.move_on_after(UNHEARD_SECONDS):
            await self._joined.wait()
            return
        log.warning("no gateway has answered yet; what the agent asks waits for it (meup up)")

    def report(self, proposal: str, report: PermitReport) -> bool:
        """Tell the space what came of a permit, as :meth:`Door.report` does."""
        return self._door.report(proposal, report)

    async def ask(self, call: HostCall) -> Answer:
        """Propose a call, and wait until it may run, or must not; cancelling withdraws it."""
        deadline = None if self._ttl is None else anyio.current_time() + self._ttl
        with anyio.move_on_after(self._ttl):
            await self._joined.wait()
        left = None if deadline is None else deadline - anyio.current_time()
        if not self._joined.is_set() or (left is not None and left <= 0):
            words = decisions.failed(call.tool, "no gateway has answered, so nobody could decide")
            return Denied(Why.UNREACHABLE, f"{words} It was not carried out. Tell the user.")
        return await self._door.ask(call, ttl=left, to=self._to)

"""Which handlers were stopped, and why: each says so itself, in its own ``finally``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from meup_agent import Cause, Context
from meup_agent.cli.demo.arrivals import EventLog


@dataclass(frozen=True, slots=True)
class Stop:
    """A handler was stopped, and is done with cleaning up.

    Attributes:
        agent: Whose handler it is.
        handler: Its name.
        cause: Why it was stopped: code, by whom, and the chain it came along.
    """

    agent: str
    handler: str
    cause: Cause

    def __str__(self) -> str:
        """The handler and the way that its end came, first step first."""
        way = " ← ".join(link.by for link in self.cause.chain) or self.cause.by
        return f"{self.handler}: {self.cause.code} ← {way}"


class Stops(EventLog[Stop]):
    """Every stop of the demo."""

    @contextmanager
    def noted(self, agent: str, handler: str, ctx: Context) -> Generator[None]:
        """Note a handler's stop, if the block ends by one."""
        try:
            yield
        finally:
            if ctx.reason is not None:
                self.add(Stop(agent, handler, ctx.reason))

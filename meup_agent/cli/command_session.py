"""A command's short stay in a space: it joins, does one thing, and leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.cli import exit_codes
from meup_agent.cli.address import Address
from meup_agent.cli.connector import (
    ConnectionEnded,
    ConnectionEvent,
    FirstAttemptFailed,
    ReportingConnector,
    format_loss,
)
from meup_agent.cli.failures import Failure
from meup_agent.cli.logs import log_nothing
from meup_agent.cli.options import WELCOME_SECONDS
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.output import Output, OutputClosed
from meup_agent.cli.render.stderr import Stderr
from meup_agent.cli.signals import ENDING, ended_by, exit_code, watch_signals
from meup_agent.protocol.exchange import Mode
from meup_agent.session import Settings
from meup_agent.transport.task_groups import background_tasks

if TYPE_CHECKING:
    from meup_agent.client.space import Space

MAX_NAMED: Final = 12
"""Participants that an error names."""

Act = Callable[["CommandSession"], Awaitable[None]]


class CommandSession:
    """One run of a command.

    Args:
        where: Where the space is, and who we are there.
        colour: ``False``: none, also on a terminal.
        seconds: How long to wait for the welcome; ``None``: as long as it takes.
        mode: How much it does there. A command answers nothing: what is asked of the participant
            is for its agent, in whose place it stands for a moment.
        take_over: Where it only observes, join also a gateway that knows no observers.

    Attributes:
        space: The space, once we have been welcomed.
        where: Where it is.
        output: Standard output: the result, and nothing else.
        stderr: Standard error.
        given_up: What a signal ends, in words: ``proposal 3f… was withdrawn``.
    """

    space: Space

    def __init__(
        self,
        where: Address,
        *,
        colour: bool = True,
        seconds: float | None = WELCOME_SECONDS,
        mode: Mode = Mode.OUTGOING_ONLY,
        take_over: bool = False,
    ) -> None:
        self.where = where
        self.output = Output(colour=colour)
        self.stderr = Stderr(colour=colour)
        self.given_up = ""
        self._welcome_seconds = seconds
        self._mode = mode
        self._take_over = take_over
        self._acting: anyio.CancelScope | None = None
        self._signal: int | None = None
        self._done = False
        self._told = True

    def run(self, act: Act) -> None:
        """Join, act, leave; a signal ends it early, with a last word to the others.

        Raises:
            Failure: It was interrupted, or no gateway answered.
            MeupError: As ``act`` and :meth:`meup_agent.Agent.join` say.
        """
        log_nothing()
        anyio.run(self._run, act)
        if self._signal is not None:
            raise self._interrupted(self._signal)

    async def _run(self, act: Act) -> None:
        try:
            async with background_tasks() as tasks:
                await tasks.start(watch_signals, ENDING, partial(self._end, tasks.cancel_scope))
                await self._stay(act)
        except OutputClosed:
            self.output.abandon()
        except FirstAttemptFailed as error:
            raise Failure(str(error), exit_codes.NO_CONNECTION) from error

    async def _stay(self, act: Act) -> None:
        where = self.where
        dial = ReportingConnector(where.url, where.space, self._tell, patient=False)
        settings = Settings(first_welcome=self._welcome_seconds, mode=self._mode)
        async with Agent("meup").join(
            dial,
            space=where.space,
            token=where.token,
            participant=where.participant,
            settings=settings,
            grace=0.0,
            take_over=self._take_over,
        ) as self.space:
            with anyio.CancelScope() as self._acting:
                await act(self)
                self._done, self._signal = True, None
            self._told = self.space.connected

    async def _tell(self, event: ConnectionEvent) -> None:
        if isinstance(event, ConnectionEnded) and self._acting is not None:
            self.stderr.note(format_loss(event.info))

    # --- signals ---

    def _end(self, scope: anyio.CancelScope, number: int) -> None:
        if self._done:
            return  # only our last words are still on their way, for a moment
        if self._signal is not None or self._acting is None:
            scope.cancel()
        else:
            self._acting.cancel()
        self._signal = self._signal or number

    def _interrupted(self, number: int) -> Failure:
        said = ended_by(number)
        if self.given_up and self._told:
            said = f"{said}; {self.given_up}"
        elif self.given_up:
            said = f"{said} without a connection, so nobody could be told: it may still happen"
        return Failure(said, exit_code(number))

    # --- who is here ---

    def others(self) -> list[str]:
        """The names of everybody else who is present, in order."""
        return sorted(each.id for each in self.space.participants if each.id != self.space.me)

    def require(self, *names: str) -> None:
        """Check that these are present.

        Raises:
            Failure: Somebody is not; it says who is.
        """
        for name in names:
            if name != self.space.me and name not in self.others():
                raise Failure(f"{self._absence([name])}", exit_codes.ABSENT)

    def remark_absence(self, names: Iterable[str]) -> None:
        """Say so, if somebody who should decide is not present: they may still come."""
        absent = [name for name in names if name != self.space.me and name not in self.others()]
        if absent:
            self.stderr.note(self._absence(absent))

    def _absence(self, names: list[str]) -> str:
        others = self.others()
        here = ", ".join(visible(each, 64) for each in others[:MAX_NAMED]) or "nobody else"
        more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        close = get_close_matches(names[0], others, n=1)
        hint = f"; did you mean {visible(close[0], 64)}?" if close else ""
        who = ", ".join(map(repr, names))
        verb = "is" if len(names) == 1 else "are"
        return f"{who} {verb} not in the space {self.where.space!r}; here: {here}{more}{hint}"

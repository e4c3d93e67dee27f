"""A command's short stay over HTTP: it does one thing, and a signal ends it early."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio

from meup_agent.cli.beside.address import HttpAddress
from meup_agent.cli.beside.http_space import HttpSpace, open_http
from meup_agent.cli.failures import Failure
from meup_agent.cli.logs import log_nothing
from meup_agent.cli.render.console import Stderr
from meup_agent.cli.render.output import Output, OutputClosed
from meup_agent.cli.signals import ENDING, ended_by, exit_code, watch_signals
from meup_agent.errors import Refused
from meup_agent.transport.task_groups import background_tasks

LAST_WORDS_SECONDS: Final = 3.0
"""How long a command that is ended may take to say that it gives up."""

Act = Callable[["HttpVisit"], Awaitable[None]]


class HttpVisit:
    """One run of a command over HTTP.

    Args:
        where: Where the API is, and who we are.
        colour: ``False``: none, also on a terminal.

    Attributes:
        space: The space, once the gateway knows us.
        output: Standard output: the result, and nothing else.
        stderr: Standard error.
        given_up: What a signal ended, in words.
    """

    space: HttpSpace

    def __init__(self, where: HttpAddress, *, colour: bool = True) -> None:
        self.output = Output(colour=colour)
        self.stderr = Stderr(colour=colour)
        self.given_up = ""
        self._where = where
        self._signal: int | None = None

    def run(self, act: Act) -> None:
        """Do it; a signal ends it early, with a last word to the others.

        Raises:
            Failure: It was interrupted, or as ``act`` says.
            MeupError: As ``act`` says.
        """
        log_nothing()
        anyio.run(self._run, act)
        if self._signal is not None:
            said = ended_by(self._signal)
            if self.given_up:
                said = f"{said}; {self.given_up}"
            raise Failure(said, exit_code(self._signal))

    async def _run(self, act: Act) -> None:
        try:
            async with background_tasks() as tasks:
                await tasks.start(watch_signals, ENDING, partial(self._end, tasks.cancel_scope))
                async with open_http(self._where) as self.space:
                    await act(self)
        except OutputClosed:
            self.output.abandon()

    def _end(self, scope: anyio.CancelScope, number: int) -> None:
        self._signal = self._signal or number
        scope.cancel()

    @asynccontextmanager
    async def giving_up(self, say: Callable[[], Awaitable[str]]) -> AsyncGenerator[None]:
        """Say that we give up, if the block is left before it is done.

        Args:
            say: Says it; returns what was said in words.
        """
        try:
            yield
        except Refused:
            raise  # nothing was said that could be taken back
        except BaseException:
            with anyio.move_on_after(LAST_WORDS_SECONDS, shield=True) as words:
                try:
                    self.given_up = await say()
                except Exception as error:
                    self.given_up = f"nobody could be told ({error}): it may still happen"
            if words.cancelled_caught:
                self.given_up = "nobody could be told in time: it may still happen"
            raise

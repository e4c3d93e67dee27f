"""Notifier: a bell or a command of the person's for each proposal that arrives."""

from __future__ import annotations

import os
import shlex
from contextlib import asynccontextmanager
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Final

import anyio
from anyio import AsyncContextManagerMixin

from meup_agent.cli.inbox.card import SHOW
from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.escape import visible
from meup_agent.transport.loops import background_tasks
from meup_agent.wording import format_proposed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import Self

    from anyio.abc import TaskGroup

    from meup_agent.approval.inbox_item import InboxItem

BELL: Final = "bell"

MAX_COMMANDS: Final = 4
"""Commands that run at the same time; of proposals that arrive meanwhile none is told."""

COMMAND_SECONDS: Final = 30.0
"""Time after which a command is stopped."""

MAX_COMMAND: Final = 64
"""Characters of its name that are shown where it fails."""


class Notifier(AsyncContextManagerMixin):
    """Tells a person of what arrives.

    Args:
        command: The command, ``bell``, or ``None``: nothing is told.

    Attributes:
        bell: Rings the terminal's bell.
        report: Shows a sentence.

    Raises:
        ConfigurationError: The command cannot be read.
    """

    def __init__(self, command: str | None) -> None:
        try:
            self._command = shlex.split(command or "")
        except ValueError as error:
            raise ConfigurationError(f"--notify {command!r} cannot be read: {error}") from None
        self.bell: Callable[[], None] = lambda: None
        self.report: Callable[[str], None] = lambda _: None
        self._has_failed = False
        self._tasks: TaskGroup | None = None
        self._running = 0

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with background_tasks() as self._tasks:
            yield self

    def arrived(self, item: InboxItem) -> None:
        """Tell of a proposal; returns at once."""
        if self._command == [BELL]:
            self.bell()
        elif self._command and self._tasks is not None and self._running < MAX_COMMANDS:
            self._running += 1
            self._tasks.start_soon(self._run, item)

    async def _run(self, item: InboxItem) -> None:
        # No part of it is a word of the command: a shell in it sees variables alone.
        told = {
            "MEUP_PROPOSAL": visible(item.id, 64),
            "MEUP_PROPOSER": visible(item.proposer, 64),
            "MEUP_CALL": format_proposed(item.call, more=SHOW),
        }
        try:
            with anyio.move_on_after(COMMAND_SECONDS) as patience:
                done = await anyio.run_process(
                    self._command,
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    check=False,
                    env={**os.environ, **told},
                )
                if done.returncode:
                    self._fail(f"exit status {done.returncode}")
            if patience.cancelled_caught:
                self._fail(f"it runs for more than {COMMAND_SECONDS:g} s")
        except OSError as error:
            self._fail(system_reason(error))
        finally:
            self._running -= 1

    def _fail(self, why: str) -> None:
        """Ring the bell, since that is better than silence, and say so the first time."""
        self.bell()
        if not self._has_failed:
            self._has_failed = True
            name = visible(self._command[0], MAX_COMMAND)
            self.report(f"--notify: {name} failed ({why}); the bell rings instead")

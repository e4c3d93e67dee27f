"""The end of a block that is in a space: few words for Ctrl-C and for a lost connection."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from meup_agent.errors import ConnectionFailed
from meup_agent.uncaught import debugging, report_briefly

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Reported:
    """Notes what the user's own block raises, whose traceback says where."""

    def __init__(self) -> None:
        self.theirs: BaseException | None = None

    def by_user(self, error: BaseException) -> None:
        """The block has raised something, and is about to be left."""
        self.theirs = error
        _report_if_ended(error)


@asynccontextmanager
async def reported_briefly() -> AsyncGenerator[Reported]:
    """Let Ctrl-C and the connection's end leave the block with few words."""
    reported = Reported()
    try:
        yield reported
    except BaseException as error:
        _report_if_ended(error)
        ours = isinstance(error, ConnectionFailed) and error is not reported.theirs
        if ours and not debugging():
            # Nobody looks for a mistake in our tasks, and their tracebacks fill a screen.
            _shorten(error)
        raise


def _report_if_ended(error: BaseException) -> None:
    """Prepare for the end of the program, if it is what an exception may lead to."""
    endings = (KeyboardInterrupt, ConnectionFailed, anyio.get_cancelled_exc_class())
    if isinstance(error, endings):
        report_briefly()


def _shorten(error: BaseException) -> None:
    """Take the tracebacks of an exception and of its causes away."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = each.__context__ = None
        each = each.__cause__

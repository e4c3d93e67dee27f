"""Users see the exception that matters, not our task groups."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from meup_agent.errors import ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def unwrapped() -> Generator[None]:
    """Let one exception out of a group: the block's own first, then why the connection ended.

    Several of the block's own stay together in a group.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        raise _what_matters(group) from None


def _what_matters(group: BaseExceptionGroup[BaseException]) -> BaseException:
    flat: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            inner = cast("BaseExceptionGroup[BaseException]", error)
            pending[:0] = inner.exceptions
        else:
            flat.append(error)
    theirs = [error for error in flat if not isinstance(error, ConnectionFailed)]
    if not theirs:
        return flat[0]
    return theirs[0] if len(theirs) == 1 else group

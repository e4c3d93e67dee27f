"""Seat: the membership of a participant that decides beside its connections, as a person does.

What a person does in an inbox is posted beside the participant's other connections, and heard by
an observer, which no member sees. A proposal that no present participant may decide ends after half
a minute (PROTOCOL 4.6), in front of the person who would decide it. So where no agent of the
participant is a member, one joins that decides nothing; where an agent joins later, it takes the
seat over, and the seat is taken again when that agent has left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.errors import ConnectionFailed
from meup_agent.protocol.exchange import Mode
from meup_agent.session.settings import Settings

if TYPE_CHECKING:
    from meup_agent.client.space import Space

SEAT_SECONDS: Final = 5.0
"""Wait for the welcome of a seat; then it is tried again."""

SEATED: Final = Settings(first_welcome=SEAT_SECONDS, mode=Mode.SEATED)
"""Settings for joining as a seat."""


async def keep_seat(
    is_free: Callable[[], bool],
    changed: Callable[[], Awaitable[object]],
    join: Callable[[Agent], AbstractAsyncContextManager[Space]],
) -> None:
    """Be a member wherever no other connection of the participant is one; never returns.

    Args:
        is_free: True while the participant is no member; an error that it raises ends it all.
        changed: Waits until that may have changed.
        join: Joins with an agent as the participant, with :data:`SEATED`. It should refuse where
            the participant is a member already, or it takes over from an agent that joined at the
            same moment.
    """
    while True:
        while not is_free():
            await changed()
        with suppress(ConnectionFailed):
            async with join(Agent("inbox")):
                await anyio.sleep_forever()

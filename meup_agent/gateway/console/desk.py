"""A desk: the session of a participant beside its other connections, and the inbox over it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.approval import Inbox
from meup_agent.approval.inbox_listing import pause_for_screen
from meup_agent.gateway.console.local_transport import local_connector
from meup_agent.protocol.exchange import Mode
from meup_agent.session.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.runtime import GatewayRuntime

JOIN_SECONDS: Final = 10.0
"""Seconds that a page waits for its participant to have joined."""

MAX_OPENING: Final = 2
"""Desks that are opened at the same time; others wait their turn."""

NO_TOKEN: Final = "in-process"
"""A session wants a token to show; here the sign-in has checked one already."""


class Desk(NamedTuple):
    """A participant at work: its session in the space, and its inbox."""

    space: Space
    inbox: Inbox


class DeskOpener:
    """Opens desks in the spaces of a gateway."""

    def __init__(self, runtime: GatewayRuntime) -> None:
        self.runtime = runtime
        self._opening = anyio.Semaphore(MAX_OPENING)

    @asynccontextmanager
    async def open(
        self,
        identity: Identity,
        make_inbox: Callable[..., Inbox] = Inbox,
        until_drawn: Callable[[], Awaitable[None]] = pause_for_screen,
    ) -> AsyncGenerator[Desk]:
        """A desk of a participant, for the length of a block.

        Args:
            identity: The participant.
            make_inbox: Makes its inbox.
            until_drawn: Waits until its first page is drawn; of many proposals, the rest is read
                then.

        Raises:
            MeupError: It could not join, or its session was ended.
        """
        async with AsyncExitStack() as stack:
            # One proposal may name hundreds of people: the others are served in between.
            async with self._opening:
                space = await stack.enter_async_context(self._join(identity))
                inbox = make_inbox(space, until_drawn=until_drawn)
                await stack.enter_async_context(inbox)
            yield Desk(space, inbox)

    def _join(self, identity: Identity) -> AbstractAsyncContextManager[Space]:
        return Agent("console").join(
            local_connector(self.runtime, identity),
            space=identity.space,
            token=NO_TOKEN,
            participant=identity.participant,
            settings=Settings(mode=Mode.BESIDE, first_welcome=JOIN_SECONDS),
            grace=0.0,
        )

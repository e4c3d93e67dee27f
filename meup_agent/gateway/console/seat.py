"""Seat: the membership of a signed-in participant, by which the others see that it is there.

What a person does in the console is posted beside the participant's other connections, and heard
by an observer, which is present to nobody. A proposal that nobody present may decide ends after
half a minute (PROTOCOL 4.6), in front of the person who would decide it. So where no agent of the
participant has joined, the console joins for it, and decides nothing; where one joins later, it
takes the seat over, and gets it back when that agent leaves.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.client.proposal import Proposal
from meup_agent.errors import ConnectionFailed
from meup_agent.gateway.console.connector import seat_connector
from meup_agent.protocol import kinds
from meup_agent.session.settings import Settings

if TYPE_CHECKING:
    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.envelope import Envelope

SEAT_SECONDS: Final = 5.0
"""Seconds after which a seat that could not be taken is tried again."""


async def keep_seat(runtime: GatewayRuntime, identity: Identity, space: Space, token: str) -> None:
    """Be a member of the space wherever no other connection of the participant is one.

    Args:
        runtime: The gateway.
        identity: The participant.
        space: The space as the participant's observer sees it.
        token: What the session shows for a token.
    """
    while True:
        await _until_free(runtime, identity, space)
        with suppress(ConnectionFailed):
            async with _holder().join(
                seat_connector(runtime, identity),
                space=identity.space,
                token=token,
                participant=identity.participant,
                settings=Settings(first_welcome=SEAT_SECONDS),
                grace=0.0,
            ):
                await anyio.sleep_forever()


def _holder() -> Agent:
    """An agent that answers what every member answers, and leaves proposals to the inbox."""
    holder = Agent("console")

    @holder.on_proposal(method="**")
    async def leave(proposal: Proposal) -> None:
        """Take it, so that it is not rejected for want of a handler."""

    return holder


async def _until_free(runtime: GatewayRuntime, identity: Identity, space: Space) -> None:
    """Wait until no member of the space is the participant."""
    host, participant = runtime.spaces[identity.space], identity.participant
    with space.watch() as envelopes:
        if participant not in host:
            return
        async for envelope in envelopes:
            if _is_about(envelope, participant) and participant not in host:
                return


def _is_about(envelope: Envelope, participant: str) -> bool:
    if envelope.kind != kinds.SYSTEM_PRESENCE:
        return False
    described = envelope.payload_object.get("participant")
    return isinstance(described, dict) and described.get("id") == participant

"""Says something that nobody answers, and finds out whether the gateway took it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure
from meup_agent.errors import Refused
from meup_agent.protocol import kinds

if TYPE_CHECKING:
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope

REFUSAL_SECONDS: Final = 1.0
"""How long a refusal is waited for at a gateway that confirms nothing: it answers at once."""


async def send_confirmed(
    space: Space, what: str, send: Callable[[], Awaitable[str]]
) -> tuple[str, bool]:
    """Send an envelope, and wait until it comes back or is refused.

    Args:
        space: The space.
        what: What it is, for errors: ``the message``.
        send: Sends it; gives its id.

    Returns:
        Its id, and whether the gateway confirmed it: some never do.

    Raises:
        Refused: The gateway did not let it through.
        MeupError: As ``send`` says.
    """
    with space.watch() as envelopes:
        sent = await send()
        with anyio.move_on_after(None if space.guarantees.echo else REFUSAL_SECONDS):
            async for envelope in envelopes:
                if envelope.id == sent and envelope.sender == space.me:
                    return sent, True
                if _is_refusal(envelope, sent):
                    raise _refused(what, envelope)
    return sent, False


def unconfirmed(what: str, seconds: float) -> Failure:
    """The failure of something that came to no end in its time."""
    return Failure(
        f"the gateway did not confirm {what} in {seconds:g} s, so it may not have arrived",
        exit_codes.UNKNOWN,
    )


def _is_refusal(envelope: Envelope, sent: str) -> bool:
    return (
        envelope.kind == kinds.SYSTEM_ERROR
        and envelope.sender in kinds.GATEWAY_NAMES
        and sent in envelope.correlation
    )


def _refused(what: str, envelope: Envelope) -> Refused:
    payload = envelope.payload_object
    code, said = str(payload.get("error", "error")), payload.get("message")
    more = f" ({said})" if isinstance(said, str) and said else ""
    return Refused(code, f"the gateway refused {what}: {code}{more}", payload)

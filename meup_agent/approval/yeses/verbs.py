"""Verbs about scoped yeses: give one at a proposal, list those that are kept, revoke one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.client.management import AwaitedAnswer, ask, given
from meup_agent.errors import NotOffered
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.payloads import as_text, objects_in
from meup_agent.protocol.wire.scoped_yes import KeptYes, YesTerms, read_described

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope

YES_SECONDS: Final = 10.0
"""Wait for the gateway to take a yes, or to list them."""


async def _ask(space: Space, kind: str, payload: dict[str, Any], **more: Any) -> Envelope:
    session = space._session  # pyright: ignore[reportPrivateUsage]
    return await ask(session, kind, payload, timeout=YES_SECONDS, **more)


async def give_yes(space: Space, proposal: str, terms: YesTerms) -> str:
    """Give a scoped yes at a pending proposal; its id.

    Raises:
        NotOffered: The gateway keeps none.
        Refused: It does not take this one, and says why.
        MeupError: As :meth:`Members.grant`.
    """
    if not space.gateway.guarantees.keeps_yeses:
        raise NotOffered("this gateway keeps no yeses: approve each call by itself")
    payload: dict[str, Any] = msgspec.to_builtins(terms)
    said = await _ask(space, kinds.YES_GIVE, payload, correlation=(proposal,))
    return said.id


async def revoke_yes(space: Space, yes_id: str, reason: str = "") -> None:
    """Revoke a scoped yes: what it covers is asked about again.

    Raises:
        Refused: It is not kept any more, or we may not revoke it.
        MeupError: As :meth:`Members.grant`.
    """
    payload = {"yes_id": yes_id, **given(reason=reason)}
    await _ask(space, kinds.YES_REVOKE, payload)


async def list_yeses(space: Space, *, proposer: str = "", tool: str = "") -> list[KeptYes]:
    """List the scoped yeses that the gateway keeps, oldest first; none where it keeps none.

    Args:
        space: The space.
        proposer: Only those for calls of this participant.
        tool: Only those for this tool.

    Raises:
        MeupError: The gateway did not answer.
    """
    if not space.gateway.guarantees.keeps_yeses:
        return []
    query = given(proposer=proposer, tool=tool)
    answer = await _ask(space, kinds.YES_LIST, query, answer=AwaitedAnswer(kinds.YES_LISTED))
    found: list[KeptYes] = []
    for each in objects_in(answer.payload_object.get("yeses")):
        state = each.pop("state", "")
        read = read_described(each)
        if read is not None and isinstance(state, str):
            found.append(KeptYes(read, state))
    return found


class YesWatch:
    """Tells of each proposer for whose calls a yes is given, or may have been, as an envelope says.

    Args:
        given: Called with the name of the proposer.
    """

    def __init__(self, given: Callable[[str], None]) -> None:
        self._given = given

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope says."""
        if envelope.kind == kinds.YES_GIVE:
            self._given(as_text(envelope.payload_object.get("proposer")))

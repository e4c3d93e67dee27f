"""What an envelope does to a proposal, as somebody sees it who takes no part in the space.

The exchange table decides, as in every participant. It sees the gateway's order, and everything, so
its word is the last one about what crossed (PROTOCOL 4.2).
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Final

from meup_agent.protocol import kinds
from meup_agent.protocol.audit.records import Ignored
from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.exchange import Drop, ExchangeTable
from meup_agent.protocol.exchange.proposal_store import ProposalEntry, ProposalStore
from meup_agent.protocol.guarantees import OURS, said_by
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.outcomes import Rejection
from meup_agent.protocol.space.journal import Entry
from meup_agent.reasons import Reason, read_reason

_ME: Final = "\0audit"
"""The table's own name: one that no participant can have, so that nobody's words are its own."""

_FOREVER: Final = float("inf")
_MICROSECONDS: Final = 1_000_000

_WHY: Final = {
    "late_withdraw": Ignored.LATE,
    "withdraw_by_another": Ignored.NOT_THEIRS,
    "duplicate_proposal": Ignored.AGAIN,
    "duplicate_reject": Ignored.AGAIN,
    "reject_of_own_proposal": Ignored.OWN_PROPOSAL,
}
"""What the exchange table leaves out, and why."""


class ProposalFolder:
    """An exchange table that everything is fed to, and that forgets nothing by itself."""

    def __init__(self) -> None:
        ids = count()
        self._table = ExchangeTable(
            new_id=lambda: f"audit-{next(ids)}",
            find_handler=lambda _role, _envelope, _call: None,
            proposal_store=ProposalStore(count=sys.maxsize, seconds=_FOREVER, size=None),
        )
        # The gateway checks who says what, so what it says itself counts (PROTOCOL 5).
        self._table.receive(_welcome(), 0.0)

    @property
    def proposal_store(self) -> ProposalStore:
        """Every proposal, as everybody in the space knows it."""
        return self._table.proposal_store

    def take(self, entry: Entry) -> Ignored | None:
        """Let the table take an envelope; why it left it out, if it did."""
        effects = self._table.receive(entry.envelope, seconds(entry))
        whys = (_WHY[each.why] for each in effects if isinstance(each, Drop) and each.why in _WHY)
        return next(whys, None)


def seconds(entry: Entry) -> float:
    """When an entry was accepted, as the table counts time: in seconds since 1970 (UTC)."""
    return entry.at / _MICROSECONDS


def _welcome() -> Envelope:
    you = {"id": _ME, "capabilities": list[object]()}
    payload = {"you": you, "participants": list[object](), **said_by(OURS)}
    return draft(kinds.SYSTEM_WELCOME, payload, id="", sender=kinds.GATEWAY, to=(_ME,))


def accepted_rejection(record: ProposalEntry, withdraw: Envelope) -> Rejection | None:
    """The rejection that a withdrawal says its proposer takes for an answer.

    Only the proposer knows which one ends its wait; it then withdraws the proposal, and gives no
    reason of its own (PROTOCOL 4.5, 4.12).

    Args:
        record: The proposal, before the withdrawal.
        withdraw: The withdrawal.
    """
    reason = read_reason(withdraw.payload_object.get("reason"))
    if withdraw.sender != record.key.proposer or reason != Reason.NO_LONGER_NEEDED:
        return None
    if record.state is not ProposalState.PENDING:
        return None
    said = list(record.rejections.values())
    found = [each for each in said if each.by in record.envelope.to] or said
    return found[-1] if found else None

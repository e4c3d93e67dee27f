"""The state that a proposer's withdraw leads to (PROTOCOL 4.2, 4.5).

On the wire a proposer says one thing, whatever ended its wait: a withdraw with a reason. The
exchange tables, the gateway and the audit read it by this one function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from meup_agent.causes import Reason, read_reason
from meup_agent.protocol.payloads import META, REJECTED_BY, JsonObject, as_object
from meup_agent.protocol.proposals.lifecycle import ProposalEvent, ProposalState

MAX_REJECTIONS: Final = 1024
"""Rejections that are kept for one proposal: one a participant, and spaces are smaller."""

EARLY_EXPIRY_SECONDS: Final = 1.0
"""Time before its deadline from which a withdraw with ``timeout`` is an expiry: a proposer's timer
and the gateway's clock differ by that after a night."""

_EARLY_MICROSECONDS: Final = round(EARLY_EXPIRY_SECONDS * 1_000_000)


class Waiting(NamedTuple):
    """The wait for a proposal, as its readers know it when its proposer withdraws it."""

    state: ProposalState  # pending, or in progress
    to: Sequence[str]  # the addressees of the proposal, who decide it; empty: all that may
    rejected_by: Sequence[str]  # the participants that have rejected it, in order
    rejected_first: int  # how many of these did before the request that is out
    expires_at: int | None  # its deadline, in microseconds since 1970; ``None``: it has none

    @property
    def _counted(self) -> Sequence[str]:
        """The participants whose rejection may have ended the wait: no later one counts (4.4)."""
        in_progress = self.state is ProposalState.IN_PROGRESS
        return self.rejected_by[: self.rejected_first] if in_progress else self.rejected_by

    @property
    def inferred_rejection(self) -> str:
        """The participant whose rejection a withdraw without a reason of its own follows.

        By default the first rejection of an addressee ends the wait, and the last one of a
        broadcast proposal. The wait for one that is in progress ends by no rejection but an earlier
        one of an addressee. Empty: none does.
        """
        if self.to:
            return next((name for name in self._counted if name in self.to), "")
        if self.state is ProposalState.IN_PROGRESS or not self.rejected_by:
            return ""
        return self.rejected_by[-1]

    def find_rejection(self, payload: JsonObject) -> str:
        """The participant whose rejection a withdraw follows, told or inferred; empty: none."""
        meta = as_object(payload.get(META))
        if REJECTED_BY not in meta:
            return self.inferred_rejection
        return next((name for name in self._counted if name == meta[REJECTED_BY]), "")


class Withdrawn(NamedTuple):
    """The steps of a proposal's lifecycle that a withdraw of its proposer takes, in order."""

    events: tuple[ProposalEvent, ...]
    rejected_by: str = ""  # the participant whose rejection ended the wait


def read_withdrawal(payload: JsonObject, waiting: Waiting, at: int | None) -> Withdrawn:
    """The steps that a withdraw takes.

    Args:
        payload: Its payload.
        waiting: The wait that it ends.
        at: The gateway's time, in microseconds since 1970; ``None``: it is not known.
    """
    reason = read_reason(payload.get("reason"))
    if reason == Reason.TIMEOUT and waiting.expires_at is not None and at is not None:
        if at >= waiting.expires_at - _EARLY_MICROSECONDS:
            return Withdrawn((ProposalEvent.EXPIRY,))
    elif reason == Reason.NO_LONGER_NEEDED and (by := waiting.find_rejection(payload)):
        if waiting.state is ProposalState.IN_PROGRESS:
            # The withdraw ends the request that crossed the rejection.
            return Withdrawn((ProposalEvent.REQUEST_CANCELLED, ProposalEvent.REJECTION), by)
        return Withdrawn((ProposalEvent.REJECTION,), by)
    return Withdrawn((ProposalEvent.WITHDRAWAL,))

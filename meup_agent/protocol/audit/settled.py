"""Hands the proposals of a long journal over one after the other, and forgets them.

A proposal is settled when it was decided and enough envelopes have followed: its explanation, what
crossed its end, and what was said again. What is held is what is open, and what was decided lately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from meup_agent.protocol.audit.fold import Audit
from meup_agent.protocol.audit.records import ProposalAudit

LOOK_AHEAD: Final = 4_000
"""Envelopes after its decision until a proposal is settled; as many keep the order in which they
were proposed. They are read in a third of a second."""


class Settled:
    """The settled proposals of an audit that is being fed.

    Oldest first, but for those that stay open for longer than the look-ahead: they come when they
    are settled, and in the end.

    Args:
        audit: Takes the entries; nothing else releases its proposals.
        look_ahead: Envelopes until a decided proposal is settled.
        keep: Tells which proposals stay in the audit.
    """

    def __init__(
        self,
        audit: Audit,
        look_ahead: int = LOOK_AHEAD,
        keep: Callable[[ProposalAudit], bool] | None = None,
    ) -> None:
        self._audit = audit
        self._look_ahead = look_ahead
        self._keep = keep
        # Of each proposal, how many envelopes had been taken when it was seen first, and decided.
        self._begun: dict[int, int] = {}
        self._decided: dict[int, int] = {}

    def take(self, taken: int) -> Iterator[ProposalAudit]:
        """The proposals that are settled by now, which the audit forgets.

        Args:
            taken: Envelopes that the audit has taken.
        """
        until = taken - self._look_ahead
        waits = False
        for proposal in self._audit.proposals:
            if self._keep is not None and self._keep(proposal):
                continue
            key = id(proposal)
            begun = self._begun.setdefault(key, taken)
            if proposal.decision is None:
                waits = waits or begun > until
            elif self._decided.setdefault(key, taken) > until:
                # Those that were open for long and end one after the other must not hold up all.
                waits = waits or begun > until - self._look_ahead
            elif not waits:
                del self._begun[key], self._decided[key]
                self._audit.release(proposal)
                yield proposal

    def rest(self) -> Iterator[ProposalAudit]:
        """Those that are left when there are no more envelopes; none is released."""
        yield from self._audit.proposals

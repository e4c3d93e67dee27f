"""Query for proposals, open ones or lately decided ones, and a page of its answer (PROTOCOL 3).

Both ends read and write them here: the gateway, which answers, and the agent, which asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from meup_agent.errors import InvalidEnvelope, printable
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.payloads import JsonObject

MAX_LISTED: Final = 100
"""Proposals of a page: more than a screen shows; a reader enters them in a few milliseconds."""


class ProposalQuery(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The proposals that are asked for.

    Attributes:
        state: The open ones, or those that were decided lately.
        id: Only those with this id, or with ids that begin so; empty: all.
        proposer: Only those of this proposer; empty: all.
        tool: Only those that call a tool of this name; empty: all.
        to_me: Only those that are addressed to the asker, or to no participant.
        to_decide: Of the open ones those of others that the asker may fulfill or reject, in one
            page; of too many the newest, of each proposer as many as of the others.
        urgent: Of the open ones those that expire first, by their deadlines, in one page.
        after: The ``next`` of the page before; 0: the first page.
        limit: The most proposals of a page.
    """

    state: Literal["open", "decided"] = "open"
    id: str = ""
    proposer: str = ""
    tool: str = ""
    to_me: bool = False
    to_decide: bool = False
    urgent: bool = False
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LISTED)] = MAX_LISTED

    def takes(self, proposal: Envelope, tool: str, to: Iterable[str], asker: str) -> bool:
        """True for a proposal that is asked for, of which the tool and the deciders are known."""
        return (
            proposal.id.startswith(self.id)
            and self.proposer in ("", proposal.sender)
            and self.tool in ("", tool)
            and (not self.to_me or not to or asker in to)
        )


class ListedRequest(msgspec.Struct, omit_defaults=True):
    """A request that is out to fulfill a listed proposal, or was cancelled."""

    envelope: msgspec.Raw
    cancelled: bool = False


class ListedRejection(msgspec.Struct, omit_defaults=True):
    """A rejection of a listed proposal; of each participant, the first."""

    by: str
    id: str
    reason: str
    rule: str = ""


class ListedDecision(msgspec.Struct, omit_defaults=True):
    """The end of a listed proposal."""

    state: str
    at: str  # RFC 3339
    by: str = ""  # the participant that decided it; empty: it expired
    reason: str = ""
    rule: str = ""


class ListedProposal(msgspec.Struct, omit_defaults=True):
    """A proposal of a page."""

    envelope: msgspec.Raw  # as it was accepted, in the dialect of the asker
    seq: int
    expires_at: str | None = None  # its deadline, as far as the gateway knows one
    proposer_left: str | None = None  # the time at which its proposer left, while that is away
    rejections: list[ListedRejection] = []
    requests: list[ListedRequest] = []
    decision: ListedDecision | None = None  # ``None`` while it is open


class ProposalPage(msgspec.Struct, omit_defaults=True):
    """A page of the answer.

    Attributes:
        proposals: The proposals, open ones in the order of their acceptance, decided ones in the
            order of their decisions.
        seq: The number after which news follow.
        next: Where the next page begins; ``None``: this is the last one.
        left: Proposals of that state behind this page, or beside the only one, before any other
            condition.
        omitted: Proposals that have no place in an answer, since they are too large.
    """

    proposals: list[ListedProposal] = []
    seq: int = 0
    next: int | None = None
    left: int = 0
    omitted: int = 0


def read_query(question: Envelope, payload: JsonObject) -> ProposalQuery:
    """The query of a question; InvalidEnvelope if it has other fields, or other values."""
    try:
        return msgspec.convert(payload, ProposalQuery)
    except msgspec.ValidationError as error:
        problem = f"its proposals cannot be listed: {printable(str(error))}; correct its payload"
        raise InvalidEnvelope("invalid_envelope", problem, envelope_id=question.id) from None

"""Pages of proposals that the gateway lists, entered in our session as they come (PROTOCOL 3)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from anyio.lowlevel import checkpoint

from meup_agent.client.management import AwaitedAnswer, ask
from meup_agent.client.method_params import write_params
from meup_agent.client.proposal import ProposalRecord
from meup_agent.errors import InvalidEnvelope, OutcomeUnknown, printable
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
from meup_agent.protocol.outcomes import Rejection
from meup_agent.protocol.proposal_query import ListedProposal, ProposalPage, ProposalQuery
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.timestamps import read_moment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session import Session


class RecordPage(NamedTuple):
    """A page of proposals, of which the open ones are known to our session.

    Attributes:
        records: The proposals.
        left: Proposals behind this page, as :attr:`ProposalPage.left`.
        omitted: Proposals that the gateway, or we, could not tell of: they are too large.
    """

    records: list[ProposalRecord]
    left: int = 0
    omitted: int = 0


async def read_proposal_pages(
    session: Session, query: ProposalQuery, timeout: float | None
) -> AsyncGenerator[RecordPage]:
    """The pages of an answer, one after the other; errors as of :meth:`Space.list_proposals`."""
    if not session.table.roster.guarantees.lists_proposals:
        await checkpoint()
        heard = _heard(session, query)
        for begin in range(0, len(heard), query.limit):
            end = begin + query.limit
            yield RecordPage(heard[begin:end], max(len(heard) - end, 0))
            if query.urgent:
                return
        return
    while True:
        reader = _PageReader(session)
        params = write_params(query)
        await ask(session, kinds.LIST_PROPOSALS, params, answer=reader, timeout=timeout)
        if reader.problem:
            raise OutcomeUnknown(
                f"the gateway's list of proposals cannot be read: {reader.problem}; update it, or"
                " this package"
            )
        yield RecordPage(reader.records, reader.page.left, reader.omitted)
        if reader.page.next is None or reader.page.next <= query.after:
            return  # the last one, or one of a gateway that would never come to an end
        query = msgspec.structs.replace(query, after=reader.page.next)


def _heard(session: Session, query: ProposalQuery) -> list[ProposalRecord]:
    """The proposals of a query that our session has heard of."""
    store, is_open = session.table.proposal_store, query.state == "open"
    entries = store.records(session.now())
    if query.urgent:
        entries.sort(key=lambda each: inf if each.expires_at is None else each.expires_at)
    heard = map(ProposalRecord, entries)
    return [
        each
        for each in heard
        if each.state.is_pending is is_open
        and query.takes(each.envelope, each.tool, each.to, session.me)
    ]


class _PageReader(AwaitedAnswer):
    """Takes a page in as it is heard: what is heard behind it is newer."""

    def __init__(self, session: Session) -> None:
        super().__init__(kinds.PROPOSALS)
        self._session = session
        self.page = ProposalPage()
        self.records: list[ProposalRecord] = []
        self.omitted = 0
        self.problem = ""

    def put(self, envelope: Envelope) -> None:
        """Keep the first answer, and enter its proposals."""
        super().put(envelope)
        if self.envelope is not envelope or envelope.kind != kinds.PROPOSALS:
            return
        try:
            self.page = msgspec.json.decode(envelope.raw_payload, type=ProposalPage)
        except (msgspec.DecodeError, RecursionError) as error:
            self.problem = printable(str(error))
            return
        self.omitted = self.page.omitted
        for listed in self.page.proposals:
            try:
                entry = self._entry(listed)
            except (InvalidEnvelope, ValueError):
                entry = None
            if entry is None:
                self.omitted += 1
            else:
                self.records.append(ProposalRecord(entry, listed))

    def _entry(self, listed: ListedProposal) -> ProposalEntry | None:
        """The record of a listed proposal; ``None``: it cannot be one."""
        envelope = decode(bytes(listed.envelope))
        if envelope.kind != kinds.MCP_PROPOSAL:
            return None
        if listed.decision is not None:
            return _decided(envelope, listed)
        # Our session has entered it, unless it cannot be one.
        key = ProposalKey(envelope.sender, envelope.id)
        return self._session.table.proposal_store.get(key, self._session.now())


def _decided(envelope: Envelope, listed: ListedProposal) -> ProposalEntry | None:
    """The record of a proposal that was decided before: it stands by itself."""
    decision, entry = listed.decision, ProposalEntry.of(envelope)
    assert decision is not None  # our caller looked
    entry.state = ProposalState(decision.state)
    entry.decided_by, entry.reason = decision.by, decision.reason
    entry.expires_at = read_moment(listed.expires_at)
    for each in listed.rejections:
        entry.rejections[each.by] = Rejection(entry.key.id, each.reason, each.by, each.id)
    return None if entry.state.is_pending else entry

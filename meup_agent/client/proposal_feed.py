"""The proposals of a space as they change: for views that follow them, and those a client left."""

from __future__ import annotations

import math
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.causes import Cause, Reason
from meup_agent.client.messages import TIMEOUT
from meup_agent.client.proposal import ProposalRecord, RecordPage, read_proposal_pages
from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.membership import ProposalQuery
from meup_agent.protocol.wire.outcomes import Expiry, Outcome, Rejection, Withdrawal
from meup_agent.protocol.wire.payloads import Call, build_end, read_call, rpc_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
    from datetime import datetime

    from meup_agent.client.space import Space
    from meup_agent.protocol.capability import Capabilities
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.session.settings import EnvelopeListener


_CANCELLED: Final = kinds.CANCELLED.encode()


MAX_OFFERED: Final = 64
"""Proposals of before we came that wait for our handlers at once, and as many more: a quarter of
the queue is left to what comes from now on."""

OFFER_SECONDS: Final = 0.1
"""Interval at which it is looked at whether handlers have taken them."""


class ProposalFeed:
    """The proposals that a participant knows, and which of them an envelope may have changed."""

    def __init__(self, space: Space) -> None:
        # A view over a session, as the space is; no verb of a user's.
        self._session = space._session  # pyright: ignore[reportPrivateUsage]
        self._store = self._session.table.proposal_store

    @property
    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._session.now()

    @property
    def time_of_day(self) -> datetime:
        """The gateway's time, else our own."""
        return self._session.time_of_day()

    @contextmanager
    def following(self, listener: EnvelopeListener) -> Generator[None]:
        """Hand every envelope that took effect to a listener, for a block."""
        with self._session.watchers.listening(listener):
            yield

    @contextmanager
    def deciding(self, listener: EnvelopeListener) -> Generator[None]:
        """Hand every envelope that took effect to a listener that decides, for a block.

        What no handler of ours decides is not rejected meanwhile.
        """
        self._session.table.add_inbox(1)
        try:
            with self.following(listener):
                yield
        finally:
            self._session.table.add_inbox(-1)

    def pending(self) -> list[ProposalEntry]:
        """The open proposals that are remembered, oldest first."""
        return [each for each in self._store.records(self.now) if each.state.is_pending]

    def list_pages(self, query: ProposalQuery) -> AsyncGenerator[RecordPage]:
        """The pages of a query, as ``space.proposals.list`` reads them."""
        return read_proposal_pages(self._session, query, TIMEOUT)

    async def offer_listed(self) -> None:
        """Offer the open proposals that the gateway lists to our handlers, as these take them."""
        session = self._session
        async with aclosing(self.list_pages(ProposalQuery(limit=MAX_OFFERED))) as pages:
            async for page in pages:
                for record in page.records:
                    entry = self.get(ProposalKey(record.proposer, record.id))
                    if entry is not None:
                        session.apply(session.table.offer(entry, self.now))
                while session.table.queued >= MAX_OFFERED:  # noqa: ASYNC110 - no event tells it
                    await anyio.sleep(OFFER_SECONDS)

    def get(self, key: ProposalKey) -> ProposalEntry | None:
        """A proposal by its proposer and id."""
        return self._store.get(key, self.now)

    def is_present(self, participant: str | None) -> bool:
        """True if a participant is present."""
        return participant in self._session.table.roster

    def may_carry_out(self, participant: str, call: Call) -> bool:
        """True if the announced capabilities of a participant allow it to carry a call out."""
        return participant in self.find_who_may_carry_out((participant,), (call,))

    def find_who_may_carry_out(
        self, participants: Iterable[str], calls: Iterable[Call]
    ) -> Iterator[str]:
        """Of some participants, those that may carry out one of some calls.

        Each call is held once against the capabilities that many share.
        """
        requests = [payloads.fulfilling_request(each) for each in calls]
        answers: dict[Capabilities, bool] = {}
        for participant in participants if requests else ():
            compiled = self._session.table.roster.compiled(participant)
            if compiled is None:
                continue
            if compiled not in answers:
                answers[compiled] = any(
                    compiled.allow(kinds.MCP_REQUEST, request, to) for request, to in requests
                )
            if answers[compiled]:
                yield participant

    def may_reject(self, participant: str, proposer: str) -> bool:
        """True if its announced capabilities allow a participant to reject a proposer's call."""
        rejection = {"reason": str(Reason.POLICY)}
        roster = self._session.table.roster
        return roster.is_allowed(participant, kinds.MCP_REJECT, rejection, (proposer,))

    def may_request_of_us(self, participant: str, method: str, params: Mapping[str, Any]) -> bool:
        """True if its announced capabilities allow a participant to send us a request."""
        roster = self._session.table.roster
        request = payloads.request(method, dict(params), "")
        return roster.is_allowed(participant, kinds.MCP_REQUEST, request, (roster.me,))

    def hold(self, record: ProposalEntry) -> None:
        """Keep a proposal for as long as it is shown."""
        self._store.hold(record)

    def release(self, record: ProposalEntry) -> None:
        """Let a proposal be forgotten in its time."""
        self._store.release(record)

    def concerned(self, envelope: Envelope) -> list[ProposalEntry]:
        """The proposals that an envelope may have changed."""
        now, store = self.now, self._store
        if envelope.kind == kinds.MCP_PROPOSAL:
            return [
                each
                for each in store.under(envelope.id, now)
                if each.key.proposer == envelope.sender
            ]
        names = envelope.correlation
        if envelope.kind == kinds.MCP_REQUEST and _CANCELLED in envelope.raw_payload:
            call = read_call(envelope.payload)
            named = rpc_name(call.params.get("requestId"))
            names = names if named is None else (*names, named)
        found = [each for name in names for each in store.under(name, now)]
        found += [each for name in names for each, _ in store.find_fulfillments(name, now)]
        return found


MAX_ID_CHARS: Final = 256
"""Characters of an id that is asked for: no proposal has a longer one."""

QUIET_SECONDS: Final = 10.0
"""Until the gateway is asked again though nothing was heard: an expiry need not be told."""

PAUSE_SECONDS: Final = 1.0
"""Between two questions, however much is said in the space."""

_NEWS: Final = (kinds.MCP_RESPONSE, kinds.MCP_REJECT, kinds.MCP_WITHDRAW, kinds.MCP_REQUEST)


async def find_left(space: Space, proposal: str) -> ProposalRecord | None:
    """A proposal of our own participant that outlives its process; ``None``: there is none.

    Raises:
        MeupError: The gateway did not answer.
    """
    if len(proposal) > MAX_ID_CHARS or not space.gateway.guarantees.lists_proposals:
        return None
    for state in ("open", "decided"):
        async for each in space.proposals.list(state=state, id=proposal, proposer=space.me):
            if each.id == proposal and each.outlives:
                return each
    return None


async def withdraw_left(space: Space, record: ProposalRecord) -> None:
    """Take it back; without effect where it is decided.

    Raises:
        MeupError: The gateway did not let it through.
    """
    await space.send(
        kinds.MCP_WITHDRAW,
        build_end(Reason.NO_LONGER_NEEDED, None),
        to=record.to,
        correlation=record.id,
    )


async def outcome_of_left(
    space: Space, record: ProposalRecord, within: float | None
) -> Outcome | ProposalRecord | None:
    """Wait for its outcome.

    Returns:
        Its outcome; its record, where it was carried out and its answer is not kept; ``None``: it
        still waits after so many seconds, or is known no longer.

    Raises:
        MeupError: The gateway did not answer.
    """

    def may_end_it(envelope: Envelope) -> bool:
        return envelope.kind in _NEWS

    with (
        anyio.move_on_after(math.inf if within is None else within),
        space.watch(may_end_it) as news,
    ):
        latest: ProposalRecord | None = record
        while latest is not None:
            # Its state is our session's, which may be ahead of the list that has the answer.
            if latest.decided_at is not None:
                return _outcome(latest) or latest
            if latest.state.is_pending and latest.rejections:
                # Its process would have taken the first one for an answer (PROTOCOL 4.5).
                await withdraw_left(space, latest)
                return latest.rejections[0]
            await anyio.sleep(PAUSE_SECONDS)
            if latest.state.is_pending:
                with anyio.move_on_after(QUIET_SECONDS):
                    await anext(news, None)
            latest = await find_left(space, record.id)
    return None


def _outcome(record: ProposalRecord) -> Outcome | None:
    """The outcome of a decided proposal; ``None``: it was fulfilled, and its answer is gone."""
    match record.state:
        case ProposalState.REJECTED:
            return Rejection(record.id, record.reason or "", record.decided_by or "")
        case ProposalState.WITHDRAWN:
            by = record.decided_by or record.proposer
            return Withdrawal(record.id, by, Cause(record.reason or str(Reason.OTHER), by))
        case ProposalState.EXPIRED:
            return Expiry(record.id)
        case _:
            return record.outcome

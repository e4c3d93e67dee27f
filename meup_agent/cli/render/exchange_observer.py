"""The exchange and the state of each envelope, as ``meup tail`` shows them.

An exchange table decides what each does to a proposal, as in every participant. Added here are
requests without a proposal, which no record keeps, and envelopes that were sent again.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final, NamedTuple

from meup_agent.causes import Reason
from meup_agent.cli.render.layout import MAX_FOLLOWED
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.audit import Ignored
from meup_agent.protocol.audit.records import IGNORED_DROPS
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange import Drop, ExchangeTable
from meup_agent.protocol.outcomes import Rejection
from meup_agent.protocol.payloads import read_response
from meup_agent.protocol.proposals.fold import Folded
from meup_agent.protocol.proposals.lifecycle import ProposalEvent, ProposalState
from meup_agent.protocol.proposals.record import ProposalEntry, ProposalKey
from meup_agent.protocol.ttl_map import TTLMap
from meup_agent.wording import FAILED, IGNORED, STATES

FOLLOWED_SECONDS: Final = 3600.0
"""Time for which they are: as long as the exchange table remembers a proposal."""

AGAIN: Final = IGNORED[Ignored.AGAIN]
TOO_LATE: Final = IGNORED[Ignored.LATE]
REFUSED: Final = "refused"
REJECTED: Final = "rejected"

_ENDS: Final = (kinds.MCP_RESPONSE, kinds.MCP_REJECT, kinds.MCP_WITHDRAW)
"""Kinds that end something, and are sent again with other ids."""


def recent() -> TTLMap[Any, Any]:
    """A map that remembers what a person still follows."""
    return TTLMap(count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS)


class Observation(NamedTuple):
    """An envelope in its exchange."""

    exchange: str = ""  # the id of the proposal, where there is one
    part: str = ""  # the id of the request; empty where that is the exchange itself
    state: str = ""  # of the exchange now; empty where there is nothing to say
    edited: bool = False  # it requests something else than was proposed, or says so
    rejection: Rejection | None = None  # that a withdrawal takes for an answer


class _ExchangePart(NamedTuple):
    exchange: str
    part: str


class ExchangeObserver:
    """Places every envelope of a space, in the gateway's order."""

    def __init__(self) -> None:
        ids = count()
        self._table = ExchangeTable(
            new_id=lambda: f"observer-{next(ids)}",
            find_handler=lambda _role, _envelope, _call: None,
        )
        self._parts: TTLMap[str, _ExchangePart] = recent()
        self._calls: TTLMap[tuple[str, str], _ExchangePart] = recent()
        self._seen: TTLMap[tuple[str, str, int], bool] = recent()
        self._open: TTLMap[tuple[str, str], bool] = recent()
        # Fulfilled proposals, and whether their answer was an error: the table has one word.
        self._failed: TTLMap[ProposalKey, bool] = recent()

    def observe(self, envelope: Envelope, now: float) -> Observation:
        """Take the next envelope in."""
        self._table.expire(now)
        drops = (each for each in self._table.receive(envelope, now) if isinstance(each, Drop))
        found = (IGNORED_DROPS[each.why] for each in drops if each.why in IGNORED_DROPS)
        folded, ignored = self._table.folded, next(found, None)
        exchange, part = self._place(envelope, now)
        shown_part = "" if part == exchange else part
        if self._was_seen(envelope, now):
            return Observation(exchange, shown_part, AGAIN)
        state = "" if ignored is None else IGNORED[ignored]
        if ignored in (Ignored.AGAIN, Ignored.REFUSED):
            state = ""  # they are told by their content
        if not state:
            state = self._state(envelope, part, folded, now)
        return Observation(
            exchange, shown_part, state, _is_edited(envelope, folded), folded.rejection
        )

    def expire(self, proposal: ProposalKey, now: float) -> Observation:
        """Note that a proposal has expired, of which no envelope tells."""
        record = self._table.proposal_store.get(proposal, now)
        if record is not None and record.state is ProposalState.PENDING:
            record.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)
        exchange = self._parts.get(proposal.id, now) or _ExchangePart(proposal.id, "")
        return Observation(exchange.exchange, "", STATES[ProposalState.EXPIRED])

    # --- which exchange ---

    def _was_seen(self, envelope: Envelope, now: float) -> bool:
        """True if an envelope repeats an earlier one, as after a reconnect (PROTOCOL 4.14).

        What begins something is sent again under its id, which some senders use again for something
        else; ends are sent again under ids of their own.
        """
        is_end = envelope.kind in _ENDS or _is_cancel(envelope)
        content = hash((envelope.kind, envelope.correlation, envelope.raw_payload))
        mark = (envelope.sender, "" if is_end else envelope.id, content)
        if not envelope.id or self._seen.get(mark, now) is None:
            self._seen.put(mark, True, now)
            return False
        return True

    def _place(self, envelope: Envelope, now: float) -> _ExchangePart:
        """The exchange that an envelope belongs to, and its request."""
        if envelope.kind in (kinds.SYSTEM_WELCOME, kinds.SYSTEM_PRESENCE):
            return _ExchangePart("", "")
        refers_to = _refers_to(envelope)
        found = next(filter(None, (self._parts.get(name, now) for name in refers_to)), None)
        if found is None and refers_to and not envelope.correlation:
            # A cancel names the request by the JSON-RPC id of its sender (PROTOCOL 4.8).
            found = self._calls.get((envelope.sender, refers_to[0]), now)
        if found is None:
            found = _ExchangePart(refers_to[0] if refers_to else envelope.id, "")
        if envelope.kind == kinds.MCP_REQUEST and not _is_notification(envelope):
            found = _ExchangePart(found.exchange, envelope.id)
            rpc_name = payloads.read_call(envelope.payload).rpc_name
            if rpc_name is not None:
                self._calls.put((envelope.sender, rpc_name), found, now)
        self._parts.put(envelope.id, found, now)
        return found

    # --- its state ---

    def _state(self, envelope: Envelope, part: str, folded: Folded, now: float) -> str:
        key = (envelope.sender, part)
        match envelope.kind:
            case kinds.MCP_REQUEST if _is_notification(envelope):
                return self._end(key, "cancelled", now) if _is_cancel(envelope) else ""
            case kinds.MCP_REQUEST:
                self._open.put(key, True, now)
                return self._state_of(folded.record, now)
            case kinds.MCP_RESPONSE:
                return self._state_after_response(envelope, part, folded, now)
            case kinds.MCP_REJECT:
                return REJECTED if folded.was_pending else TOO_LATE
            case kinds.MCP_PROPOSAL | kinds.MCP_WITHDRAW:
                return self._state_of(folded.record, now)
            case _:
                return ""

    def _end(self, request: tuple[str, str], how: str, now: float) -> str:
        """End a request; the word for it, empty for a request that was never seen."""
        was_open = self._open.get(request, now)
        if was_open is None:
            return ""
        self._open.put(request, False, now)
        return how if was_open else TOO_LATE

    def _state_after_response(
        self, response: Envelope, part: str, folded: Folded, now: float
    ) -> str:
        ends = [self._end((name, part), "", now) for name in response.to]
        record, failed = folded.record, _fails(response)
        if record is not None and folded.was_pending and not record.state.is_pending:
            self._failed.put(record.key, failed, now)
            return self._state_of(record, now)
        if payloads.is_refusal(response.payload):
            return REFUSED
        if TOO_LATE in ends:
            return TOO_LATE
        return FAILED if failed else self._state_of(record, now)

    def _state_of(self, record: ProposalEntry | None, now: float) -> str:
        if record is None:
            return ""
        is_fulfilled = record.state is ProposalState.FULFILLED
        return (
            FAILED if is_fulfilled and self._failed.get(record.key, now) else STATES[record.state]
        )


def _fails(response: Envelope) -> bool:
    """True if a response is an error or the result of a failed tool."""
    result, error = read_response(response.payload)
    return error is not None or payloads.as_object(result).get("isError") is True


def _is_edited(envelope: Envelope, folded: Folded) -> bool:
    if envelope.kind != kinds.MCP_REQUEST or _is_notification(envelope):
        return False
    call = payloads.read_call(envelope.payload)
    if call.meta.get(payloads.EDITED) is True:
        return True
    if folded.record is None or folded.fulfillment is None:
        return False
    executor = envelope.to[0] if len(envelope.to) == 1 else None
    return bool(payloads.changes(folded.record.call, call, executor))


def _refers_to(envelope: Envelope) -> tuple[str, ...]:
    """The ids that an envelope refers to; a cancel may say it in its payload only."""
    if envelope.context:  # as a thought has
        return (*envelope.correlation, envelope.context)
    if envelope.correlation or not _is_notification(envelope):
        return envelope.correlation
    params = payloads.read_call(envelope.payload).params
    named = params.get("requestId", params.get(payloads.PROGRESS_TOKEN))
    return (str(named),) if isinstance(named, int | str) else ()


def _is_cancel(envelope: Envelope) -> bool:
    return (
        _is_notification(envelope)
        and payloads.read_call(envelope.payload).method == kinds.CANCELLED
    )


def _is_notification(envelope: Envelope) -> bool:
    return (
        envelope.kind == kinds.MCP_REQUEST and payloads.read_call(envelope.payload).is_notification
    )

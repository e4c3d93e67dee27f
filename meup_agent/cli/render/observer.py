"""Follows the exchanges of a space, for somebody who takes no part in them.

What an envelope does to a proposal is decided by the exchange table, as in every participant, so
that an onlooker sees the states that PROTOCOL 4 and 5 give, and none of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Final, NamedTuple

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.audit.folder import accepted_rejection
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange import Drop, Effect, ExchangeTable
from meup_agent.protocol.exchange.proposal_store import ProposalEntry, ProposalKey
from meup_agent.protocol.exchange.resolution import find_answered, resolve
from meup_agent.protocol.exchange.ttl_map import TTLMap
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.outcomes import Rejection
from meup_agent.protocol.payloads import read_response

MAX_FOLLOWED: Final = 10_000
"""Envelopes whose exchange is remembered: more than a person follows."""

FOLLOWED_SECONDS: Final = 3600.0
"""How long they are: as long as the exchange table remembers a proposal."""

AGAIN: Final = "again"
"""The state of an envelope that was seen before."""

TOO_LATE: Final = "too late"
FAILED: Final = "failed"
REFUSED: Final = "refused"
REJECTED: Final = "rejected"

_REMARKS: Final = {
    "duplicate": AGAIN,
    "late_withdraw": TOO_LATE,
    "withdraw_by_another": "not theirs",
    "reject_of_own_proposal": "own proposal",
    "forged_system": "forged",
}
"""What the exchange table leaves out, in words."""

_ENDS: Final = (kinds.MCP_RESPONSE, kinds.MCP_REJECT, kinds.MCP_WITHDRAW)
"""Kinds that end something, and are said again with other ids."""

_STATES: Final = {state: state.value.replace("_", " ") for state in ProposalState}


class Observation(NamedTuple):
    """What an envelope is to an onlooker.

    Attributes:
        exchange: The id of the exchange that it belongs to: of the proposal, where there is one.
        part: The id of the request within it; empty where that is the exchange itself.
        state: Where the exchange stands now, in words; empty where there is nothing to say.
        edited: It requests something else than was proposed, or says that it does.
        rejection: The rejection that a withdrawal takes for an answer.
    """

    exchange: str = ""
    part: str = ""
    state: str = ""
    edited: bool = False
    rejection: Rejection | None = None


class _Part(NamedTuple):
    exchange: str
    part: str


class ExchangeObserver:
    """Sees every envelope of a space, in the gateway's order."""

    def __init__(self) -> None:
        ids = count()
        self._table = ExchangeTable(
            new_id=lambda: f"onlooker-{next(ids)}",
            find_handler=lambda _role, _envelope, _call: None,
        )
        self._parts: TTLMap[str, _Part] = TTLMap(count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS)
        self._calls: TTLMap[tuple[str, str], _Part] = TTLMap(
            count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS
        )
        self._seen: TTLMap[tuple[str, str, int], bool] = TTLMap(
            count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS
        )
        self._open: TTLMap[tuple[str, str], bool] = TTLMap(
            count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS
        )
        # How proposals ended, where the table has a wider word for it.
        self._ended: TTLMap[ProposalKey, str] = TTLMap(count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS)

    def observe(self, envelope: Envelope, now: float) -> Observation:
        """Take the next envelope in.

        Args:
            envelope: The envelope, with a payload that can be read.
            now: Seconds of a clock that only goes forward.
        """
        rejection = self._answering(envelope, now)
        was_pending = self._is_pending(envelope, now)
        effects = self._table.receive(envelope, now)
        exchange, part = self._place(envelope, now)
        if self._was_seen(envelope, now):
            return Observation(exchange, "" if part == exchange else part, AGAIN)
        state = _remark(effects)
        if not state:
            self._note_end(envelope, rejection, was_pending=was_pending, now=now)
            state = self._state(envelope, exchange, part, was_pending=was_pending, now=now)
        edited = self._is_edited(envelope, now)
        return Observation(exchange, "" if part == exchange else part, state, edited, rejection)

    def _was_seen(self, envelope: Envelope, now: float) -> bool:
        """Tell whether an envelope repeats an earlier one, as after a reconnect (PROTOCOL 4.14).

        What begins something is said again under its id, which some senders use again for something
        else; ends are said again under ids of their own.
        """
        is_end = envelope.kind in _ENDS or (
            _is_notification(envelope)
            and payloads.read_call(envelope.payload).method == kinds.CANCELLED
        )
        said = hash((envelope.kind, envelope.correlation, envelope.raw_payload))
        mark = (envelope.sender, "" if is_end else envelope.id, said)
        if not envelope.id or self._seen.get(mark, now) is None:
            self._seen.put(mark, True, now)
            return False
        return True

    def _place(self, envelope: Envelope, now: float) -> _Part:
        """The exchange that an envelope belongs to, and its request."""
        if envelope.kind in (kinds.SYSTEM_WELCOME, kinds.SYSTEM_PRESENCE):
            return _Part("", "")
        refers_to = _refers_to(envelope)
        found = next(filter(None, (self._parts.get(name, now) for name in refers_to)), None)
        if found is None:
            found = self._called(envelope, now)
        if found is None:
            found = _Part(refers_to[0], "") if refers_to else _Part(envelope.id, "")
        if envelope.kind == kinds.MCP_REQUEST and not _is_notification(envelope):
            found = _Part(found.exchange, envelope.id)
            rpc_name = payloads.read_call(envelope.payload).rpc_name
            if rpc_name is not None:
                self._calls.put((envelope.sender, rpc_name), found, now)
        self._parts.put(envelope.id, found, now)
        return found

    def _called(self, envelope: Envelope, now: float) -> _Part | None:
        """The request that a cancel names by the JSON-RPC id of its sender (PROTOCOL 4.8)."""
        if envelope.correlation or not _is_notification(envelope):
            return None
        for name in _refers_to(envelope):
            return self._calls.get((envelope.sender, name), now)
        return None

    def _answering(self, envelope: Envelope, now: float) -> Rejection | None:
        """The rejection that a withdrawal takes for an answer, before it takes effect."""
        if envelope.kind != kinds.MCP_WITHDRAW:
            return None
        keys = (ProposalKey(envelope.sender, name) for name in envelope.correlation)
        for record in (self._table.proposal_store.get(key, now) for key in keys):
            found = None if record is None else accepted_rejection(record, envelope)
            if found is not None:
                return found
        return None

    def _record(self, envelope: Envelope, now: float) -> ProposalEntry | None:
        """The proposal that something is about, as the exchange table knows it."""
        proposal_store = self._table.proposal_store
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                return proposal_store.get(ProposalKey(envelope.sender, envelope.id), now)
            case kinds.MCP_WITHDRAW:
                proposer = payloads.on_behalf_of(envelope.sender, envelope.payload_object)
                keys = (ProposalKey(proposer, name) for name in envelope.correlation)
                return next(filter(None, (proposal_store.get(key, now) for key in keys)), None)
            case kinds.MCP_RESPONSE:
                found = find_answered(envelope, proposal_store, now)
                return None if found is None else found[0]
            case kinds.MCP_REJECT | kinds.MCP_REQUEST:
                return resolve(envelope, proposal_store, now).record
            case _:
                return None

    def _is_pending(self, envelope: Envelope, now: float) -> bool:
        record = self._record(envelope, now)
        return record is None or record.state.is_pending

    def _note_end(
        self, envelope: Envelope, rejection: Rejection | None, *, was_pending: bool, now: float
    ) -> None:
        """Remember what happened where the table's word for the end does not say it."""
        record = self._record(envelope, now)
        if record is None:
            return
        if record.state.is_pending or envelope.kind == kinds.MCP_PROPOSAL:
            self._ended.pop(record.key)
        elif not was_pending:
            pass
        elif envelope.kind == kinds.MCP_RESPONSE and _fails(envelope):
            self._ended.put(record.key, FAILED, now)
        elif envelope.kind == kinds.MCP_WITHDRAW and rejection is not None:
            self._ended.put(record.key, REJECTED, now)

    def _is_edited(self, envelope: Envelope, now: float) -> bool:
        if envelope.kind != kinds.MCP_REQUEST or _is_notification(envelope):
            return False
        call = payloads.read_call(envelope.payload)
        if call.meta.get(payloads.EDITED) is True:
            return True
        record = self._record(envelope, now)
        if record is None or record.fulfillment(envelope.sender, envelope.id) is None:
            return False
        executor = envelope.to[0] if len(envelope.to) == 1 else None
        return bool(payloads.changes(record.call, call, executor))

    def _state(
        self, envelope: Envelope, exchange: str, part: str, *, was_pending: bool, now: float
    ) -> str:
        key = (envelope.sender, part)
        match envelope.kind:
            case kinds.MCP_REQUEST if _is_notification(envelope):
                if payloads.read_call(envelope.payload).method != kinds.CANCELLED:
                    return ""
                return self._ends(key, "cancelled", now)
            case kinds.MCP_REQUEST:
                self._open.put(key, True, now)
                return self._state_of(envelope, now)
            case kinds.MCP_RESPONSE:
                return self._state_after_response(envelope, part, was_pending, now)
            case kinds.MCP_REJECT:
                return REJECTED if was_pending else TOO_LATE
            case kinds.MCP_PROPOSAL | kinds.MCP_WITHDRAW:
                return self._state_of(envelope, now)
            case _:
                return ""

    def _ends(self, request: tuple[str, str], how: str, now: float) -> str:
        """A request ends; the word for it, empty for a request that was never seen."""
        was_open = self._open.get(request, now)
        if was_open is None:
            return ""
        self._open.put(request, False, now)
        return how if was_open else TOO_LATE

    def _state_after_response(
        self, envelope: Envelope, part: str, was_pending: bool, now: float
    ) -> str:
        ends = [self._ends((name, part), "", now) for name in envelope.to]
        record = self._record(envelope, now)
        if record is not None and was_pending and not record.state.is_pending:
            return self._state_of(envelope, now)
        if payloads.is_refusal(envelope.payload):
            return REFUSED
        if TOO_LATE in ends:
            return TOO_LATE
        return FAILED if _fails(envelope) else self._state_of(envelope, now)

    def _state_of(self, envelope: Envelope, now: float) -> str:
        record = self._record(envelope, now)
        if record is None:
            return ""
        ended = None if record.state.is_pending else self._ended.get(record.key, now)
        return ended or _STATES[record.state]


def _fails(response: Envelope) -> bool:
    """Tell whether a response is an error or the result of a failed tool."""
    result, error = read_response(response.payload)
    return error is not None or payloads.as_object(result).get("isError") is True


def _remark(effects: Iterable[Effect]) -> str:
    """Why the exchange table left an envelope out, where that is worth a word."""
    for effect in effects:
        if isinstance(effect, Drop) and effect.why in _REMARKS:
            return _REMARKS[effect.why]
    return ""


def _refers_to(envelope: Envelope) -> tuple[str, ...]:
    """The ids that an envelope refers to; a cancel may say it in its payload only."""
    if envelope.correlation or not _is_notification(envelope):
        return envelope.correlation
    params = payloads.read_call(envelope.payload).params
    named = params.get("requestId", params.get(payloads.PROGRESS_TOKEN))
    return (str(named),) if isinstance(named, int | str) else ()


def _is_notification(envelope: Envelope) -> bool:
    return (
        envelope.kind == kinds.MCP_REQUEST and payloads.read_call(envelope.payload).is_notification
    )

"""Follows the exchanges of a space, for somebody who takes no part in them.

What an envelope does to a proposal is decided by the exchange table, as in every participant, so
that an onlooker sees the states that PROTOCOL 4 and 5 give, and none of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Final, NamedTuple

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange import Drop, Effect, ExchangeTable, ProposalKey
from meup_agent.protocol.exchange.memory import Memory
from meup_agent.protocol.exchange.resolution import answered, resolve
from meup_agent.protocol.lifecycle import ProposalState

MAX_FOLLOWED: Final = 10_000
"""Envelopes whose exchange is remembered: more than a person follows."""

FOLLOWED_SECONDS: Final = 3600.0
"""How long they are: as long as the exchange table remembers a proposal."""

AGAIN: Final = "again"
"""The state of an envelope that was seen before."""

TOO_LATE: Final = "too late"

_REMARKS: Final = {
    "duplicate": AGAIN,
    "late_withdraw": TOO_LATE,
    "withdraw_by_another": "not theirs",
    "reject_of_own_proposal": "own proposal",
    "forged_system": "forged",
}
"""What the exchange table leaves out, in words."""

_STATES: Final = {state: state.value.replace("_", " ") for state in ProposalState}


class Sight(NamedTuple):
    """What an envelope is to an onlooker.

    Attributes:
        exchange: The id of the exchange that it belongs to: of the proposal, where there is one.
        part: The id of the request within it; empty where that is the exchange itself.
        state: Where the exchange stands now, in words; empty where there is nothing to say.
    """

    exchange: str = ""
    part: str = ""
    state: str = ""


class _Part(NamedTuple):
    exchange: str
    part: str


class Onlooker:
    """Sees every envelope of a space, in the gateway's order."""

    def __init__(self) -> None:
        ids = count()
        self._table = ExchangeTable(
            new_id=lambda: f"onlooker-{next(ids)}", wants=lambda _role, _envelope, _call: False
        )
        self._parts: Memory[str, _Part] = Memory(count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS)
        self._calls: Memory[tuple[str, str], _Part] = Memory(
            count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS
        )
        self._seen: Memory[tuple[str, str, int], bool] = Memory(
            count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS
        )
        self._open: Memory[tuple[str, str], bool] = Memory(
            count=MAX_FOLLOWED, seconds=FOLLOWED_SECONDS
        )

    def see(self, envelope: Envelope, now: float) -> Sight:
        """Take the next envelope in.

        Args:
            envelope: The envelope, with a payload that can be read.
            now: Seconds of a clock that only goes forward.
        """
        effects = self._table.receive(envelope, now)
        exchange, part = self._place(envelope, now)
        if self._was_seen(envelope, now):
            state = AGAIN
        else:
            state = _remark(effects) or self._state(envelope, exchange, part, now)
        return Sight(exchange, "" if part == exchange else part, state)

    def _was_seen(self, envelope: Envelope, now: float) -> bool:
        """Whether the same was said before under the same id, as after a reconnect (PROTOCOL 4.14).

        Some senders use their ids again for something else.
        """
        mark = (envelope.sender, envelope.id, hash((envelope.kind, envelope.raw_payload)))
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

    def _state(self, envelope: Envelope, exchange: str, part: str, now: float) -> str:
        key = (envelope.sender, part)
        match envelope.kind:
            case kinds.MCP_REQUEST if _is_notification(envelope):
                if payloads.read_call(envelope.payload).method != kinds.CANCELLED:
                    return ""
                return self._ends(key, "cancelled", now)
            case kinds.MCP_REQUEST:
                self._open.put(key, True, now)
                return self._state_of(envelope, exchange, now)
            case kinds.MCP_RESPONSE:
                ends = [self._ends((name, part), "", now) for name in envelope.to]
                return self._state_of(envelope, exchange, now) or (ends[0] if ends else "")
            case kinds.MCP_REJECT:
                return _STATES[ProposalState.REJECTED]
            case kinds.MCP_PROPOSAL | kinds.MCP_WITHDRAW:
                return self._state_of(envelope, exchange, now)
            case _:
                return ""

    def _ends(self, request: tuple[str, str], how: str, now: float) -> str:
        """A request ends; the word for it, empty for a request that was never seen."""
        was_open = self._open.get(request, now)
        if was_open is None:
            return ""
        self._open.put(request, False, now)
        return how if was_open else TOO_LATE

    def _state_of(self, envelope: Envelope, exchange: str, now: float) -> str:
        """Where the proposal stands that an envelope is about; empty if that cannot be told."""
        ledger = self._table.ledger
        record = ledger.get(ProposalKey(envelope.sender, exchange), now)
        if record is None and (found := answered(envelope, ledger, now)) is not None:
            record = found[0]
        record = record or resolve(envelope, ledger, now).record
        named = ledger.under(exchange, now)
        if record is None and len(named) == 1:
            record = named[0]
        return "" if record is None else _STATES[record.state]


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

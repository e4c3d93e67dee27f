"""Proposals of ours that wait for others of ours to be fulfilled (PROTOCOL 4.15).

No participant hears of a proposal before all that it depends on is fulfilled, so one that ends
otherwise takes back nothing that another could be at work on. Each depends on earlier ones alone,
so there is no cycle, and each ends once, so a chain of any length does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from meup_agent.causes import Cause, Reason
from meup_agent.errors import UsageError
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.exchange.effects import Priority
from meup_agent.protocol.exchange.outbound_exchange import OutboundExchange, OutboundIndex
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.outcomes import Ending, Expiry, Fulfillment, Gone, Rejection, Withdrawal
from meup_agent.protocol.payloads import with_expiry
from meup_agent.protocol.timestamps import moment_of

MAX_DEPENDENCIES: Final = 64
"""Proposals that one depends on: as many as an envelope may name."""

MAX_BLOCKED: Final = 1_000
"""Proposals that wait for others; as many as a participant may have open at our gateway."""


class Dependencies:
    """The proposals that each blocked one still waits for."""

    def __init__(self) -> None:
        self.awaited: dict[str, set[str]] = {}
        self._dependents: dict[str, list[str]] = {}

    def __contains__(self, proposal: str) -> bool:
        """True if a proposal is blocked."""
        return proposal in self.awaited

    def check(self, proposal: str, needed: Iterable[str]) -> None:
        """Raise UsageError for too many, and for a cycle: an id that is used again can make one."""
        names = list(needed)
        if len(names) > MAX_DEPENDENCIES:
            raise UsageError(
                f"the proposal depends on {len(names)} others; at most {MAX_DEPENDENCIES} are "
                "taken, so let it depend on one that depends on some of them"
            )
        if len(self.awaited) >= MAX_BLOCKED:
            raise UsageError(
                f"{MAX_BLOCKED} proposals wait already for those that they depend on; propose more "
                "when some of these have ended"
            )
        if proposal not in names and proposal not in self._dependents:
            return  # none waits for it, so no way leads back to it
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name == proposal:
                raise UsageError(f"proposal {proposal} would depend on itself")
            if name not in seen:
                seen.add(name)
                names.extend(self.awaited.get(name, ()))

    def add(self, proposal: str, awaited: Iterable[str]) -> None:
        """Block a proposal until these have been fulfilled."""
        self.awaited[proposal] = set(awaited)
        for name in self.awaited[proposal]:
            self._dependents.setdefault(name, []).append(proposal)

    def fulfilled(self, needed: str) -> list[str]:
        """Note a fulfilled proposal; those that wait for nothing more, oldest first."""
        released: list[str] = []
        for name in self._dependents.pop(needed, ()):
            self.awaited[name].discard(needed)
            if not self.awaited[name]:
                del self.awaited[name]
                released.append(name)
        return released

    def failed(self, needed: str) -> list[str]:
        """Note a proposal that ended otherwise; its dependents, oldest first."""
        return list(self._dependents.get(needed, ()))

    def remove(self, proposal: str) -> None:
        """Forget a blocked proposal that has ended."""
        for name in self.awaited.pop(proposal, ()):
            dependents = self._dependents[name]
            dependents.remove(proposal)
            if not dependents:
                del self._dependents[name]


class DependentProposals:
    """Tells which blocked proposals to offer, and which to withdraw, as others have ended."""

    def __init__(self, context: TableContext, index: OutboundIndex) -> None:
        self._context = context
        self._index = index
        self._dependencies = Dependencies()

    @property
    def any_blocked(self) -> bool:
        """True if a proposal is blocked."""
        return bool(self._dependencies.awaited)

    def check(self, exchange: OutboundExchange, depends_on: Mapping[str, Ending | None]) -> None:
        """Raise UsageError for a proposal that must not depend on these."""
        self._dependencies.check(exchange.key.id, depends_on)
        for name, ending in depends_on.items():
            if ending is None:
                self._ending(name)

    def open(
        self, exchange: OutboundExchange, depends_on: Mapping[str, Ending | None]
    ) -> Cause | None:
        """Block a proposal until these are fulfilled; the cause to withdraw it, if one ended badly.

        Where all are fulfilled already it is not blocked.
        """
        endings = {name: end or self._ending(name) for name, end in depends_on.items()}
        awaited = [name for name, ending in endings.items() if ending is None]
        self._dependencies.add(exchange.key.id, awaited)
        for name, ending in endings.items():
            if ending is not None and not is_fulfilled(ending):
                return cause_of_dependent(name, ending, self._context.me, self._context.now)
        if not awaited:
            self._dependencies.remove(exchange.key.id)
        return None

    def is_blocked(self, proposal: str) -> bool:
        """True while a proposal waits for others."""
        return proposal in self._dependencies

    def _ending(self, proposal: str) -> Ending | None:
        """The ending of a proposal of ours; ``None`` while it is open."""
        exchange = self._index.find(proposal)
        if exchange is None or not exchange.is_proposal:
            raise UsageError(
                f"no proposal {proposal!r} of ours is open here, or has ended lately; depends_on "
                "takes proposals that this program has made in this space"
            )
        return exchange.ending

    def offer(self, exchange: OutboundExchange) -> None:
        """Send a proposal, whose time begins now."""
        context, ttl = self._context, exchange.ttl
        exchange.draft = context.envelope_sender.date(exchange.draft.replace(ts=None))
        moment = context.moment()
        if ttl is not None:
            exchange.deadline = context.now + ttl
            if moment is not None:
                expires = moment_of(moment) + timedelta(seconds=ttl)
                payload = with_expiry(exchange.draft.payload_object, expires)
                exchange.draft = exchange.draft.replace(raw_payload=encode_json(payload))
        exchange.record = context.proposal_store.add(exchange.draft, context.now, holders=1)
        context.envelope_sender.transmit(exchange.draft, Priority.OPEN)
        context.look_again(exchange.deadline, exchange.key)

    def remove(self, proposal: str) -> None:
        """Forget a blocked proposal that has ended."""
        self._dependencies.remove(proposal)

    def settle(self, needed: str, ending: Ending) -> list[tuple[str, Cause | None]]:
        """The proposals to offer now that one has ended, or to withdraw, with the cause of that."""
        if is_fulfilled(ending):
            return [(name, None) for name in self._dependencies.fulfilled(needed)]
        cause = cause_of_dependent(needed, ending, self._context.me, self._context.now)
        return [(name, cause) for name in self._dependencies.failed(needed)]


def is_fulfilled(ending: Ending) -> bool:
    """True if a proposal was carried out and did not fail, so that its dependents may follow."""
    return isinstance(ending, Fulfillment) and not ending.is_error


def cause_of_dependent(needed: str, ending: Ending, me: str, now: float) -> Cause:
    """The cause that withdraws a dependent: the code that the cascade began with (4.12)."""
    match ending:
        case Withdrawal():
            cause = ending.cause
        case Rejection():
            cause = Cause(ending.reason, ending.by, _why(needed, f"rejected by {ending.by}"))
        case Expiry():
            cause = Cause(Reason.TIMEOUT, me, _why(needed, "not fulfilled in time"))
        case Fulfillment():
            cause = Cause(
                Reason.NO_LONGER_NEEDED, ending.executor, _why(needed, "carried out, and failed")
            )
        case Gone():
            cause = Cause(Reason.NO_LONGER_NEEDED, me, _why(needed, f"not decided: {ending}"))
        case _:
            cause = Cause(Reason.NO_LONGER_NEEDED, me, _why(needed, "not carried out"))
    return cause.ended(me, needed, now)


def _why(needed: str, what: str) -> str:
    return f"proposal {needed}, which it depends on, was {what}"

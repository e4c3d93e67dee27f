"""A driver for one exchange table: feeds it events, and keeps its effects.

Everything that arrives goes through the wire dialect, so payloads are what a decoder makes of them.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from meup_agent import Envelope, Limits, Mode, Reason, Wait
from meup_agent.types import Cause, Guarantees
from tests.tables import (
    Cancel,
    Drop,
    Effect,
    ExchangeTable,
    FulfillmentTarget,
    Key,
    ProposalEntry,
    ProposalKey,
    ProposalStore,
    Role,
    Send,
    Start,
    Unsend,
    Wake,
)
from tests.wire import Ending, decode, draft, encode, kinds, payloads, said_by

T = TypeVar("T")

DIALECT = "meup/v0.1"
ME = "me"
EXCHANGES = frozenset({Role.REQUEST, Role.PROPOSAL})
MAY_CALL: tuple[dict[str, Any], ...] = ({"kind": "mcp/request"},)
MAY_PROPOSE: tuple[dict[str, Any], ...] = ({"kind": "mcp/proposal"},)


def over_the_wire(envelope: Envelope, dialect: str = DIALECT) -> Envelope:
    """The envelope as its readers get it."""
    return decode(encode(envelope, dialect))


class Peer:
    """One participant without an agent: its table, and all that the table has asked for."""

    def __init__(
        self,
        name: str = ME,
        *,
        roles: Iterable[Role] = EXCHANGES,
        find_handler: Callable[..., object] | None = None,
        limits: Limits | None = None,
        wall_clock: Callable[[], datetime] | None = None,
        dialect: str = DIALECT,
        mode: Mode = Mode.PARTICIPATING,
        proposal_store: ProposalStore | None = None,
    ) -> None:
        self.name = name
        self.dialect = dialect
        self.now = 1000.0
        self.effects: list[Effect] = []
        self._ids = 0
        roles = frozenset(roles)
        self.table = ExchangeTable(
            new_id=self._new_id,
            find_handler=find_handler or (lambda role, *_: role in roles),
            limits=limits,
            wall_clock=wall_clock,
            mode=mode,
            proposal_store=proposal_store,
        )

    @classmethod
    def among(
        cls,
        *others: str,
        capabilities: Iterable[dict[str, Any]] = MAY_CALL,
        gives: Guarantees | None = None,
        ts: str | None = None,
        **options: Any,
    ) -> "Peer":
        peer = cls(**options)
        peer.welcomed(*others, capabilities=capabilities, gives=gives, ts=ts)
        peer.effects.clear()
        return peer

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"

    def did(self, effects: list[Effect]) -> list[Effect]:
        """Keep the effects of one event, and hand them back."""
        self.effects += effects
        return effects

    # --- the gateway's words ---

    def welcomed(
        self,
        *others: str,
        capabilities: Iterable[dict[str, Any]] = MAY_CALL,
        gives: Guarantees | None = None,
        **header: Any,
    ) -> list[Effect]:
        """A welcome that lists these participants, and what the gateway gives."""
        listed = list(capabilities)
        return self.system(
            kinds.SYSTEM_WELCOME,
            {
                "you": {"id": self.name, "capabilities": [{"kind": "*"}]},
                "participants": [{"id": other, "capabilities": listed} for other in others],
                **({} if gives is None else said_by(gives)),
            },
            to=(self.name,),
            **header,
        )

    def joined(self, who: str, capabilities: Iterable[dict[str, Any]] = MAY_CALL) -> list[Effect]:
        participant = {"id": who, "capabilities": list(capabilities)}
        return self.system(kinds.SYSTEM_PRESENCE, {"event": "join", "participant": participant})

    def left(self, who: str) -> list[Effect]:
        return self.system(kinds.SYSTEM_PRESENCE, {"event": "leave", "participant": {"id": who}})

    def refused(self, envelope_id: str, error: str = "capability_violation") -> list[Effect]:
        return self.system(
            kinds.SYSTEM_ERROR,
            {"error": error, "message": "none of your capabilities allows this"},
            to=(self.name,),
            correlation=(envelope_id,),
        )

    def system(self, kind: str, payload: Any, **header: Any) -> list[Effect]:
        sender = header.pop("sender", kinds.GATEWAY)
        return self.hears(kind, payload, sender=sender, id=self._new_id(), **header)

    # --- what others say ---

    def hears(
        self,
        kind: str,
        payload: Any,
        *,
        sender: str,
        id: str,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
        ts: str | None = None,
    ) -> list[Effect]:
        raw = msgspec.json.encode(payload)  # others may say what our own verbs refuse
        envelope = draft(kind, raw, id=id, sender=sender, to=to, correlation=correlation, ts=ts)
        return self.receives(envelope)

    def receives(self, envelope: Envelope) -> list[Effect]:
        return self.did(self.table.receive(over_the_wire(envelope, self.dialect), self.now))

    def echo(self, envelope: Envelope) -> list[Effect]:
        """The gateway has ordered an envelope of ours: it comes back."""
        return self.receives(envelope)

    def request(
        self,
        sender: str,
        id: str,
        *,
        method: str = "tools/call",
        params: dict[str, Any] | None = None,
        rpc_id: Any = None,
        to: tuple[str, ...] | None = None,
        fulfills: str | None = None,
        meta: dict[str, Any] | None = None,
        ts: str | None = None,
    ) -> list[Effect]:
        """Another participant's request arrives; addressed to us unless told otherwise."""
        body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or CALL}
        if meta is not None:
            body["params"] = {**body["params"], "_meta": meta}
        body["id"] = id if rpc_id is None else rpc_id
        return self.hears(
            kinds.MCP_REQUEST,
            body,
            sender=sender,
            id=id,
            to=(self.name,) if to is None else to,
            correlation=() if fulfills is None else (fulfills,),
            ts=ts,
        )

    def cancel(
        self,
        sender: str,
        request_id: Any,
        *,
        id: str | None = None,
        to: tuple[str, ...] | None = None,
        **params: Any,
    ) -> list[Effect]:
        told = {"requestId": request_id, **params}
        return self._notified(sender, kinds.CANCELLED, told, to, id=id or self._new_id())

    def progress(
        self, sender: str, token: Any, done: Any, to: tuple[str, ...] | None = None, **header: Any
    ) -> list[Effect]:
        told = {"progressToken": token, "progress": done, "total": 10}
        return self._notified(sender, kinds.PROGRESS, told, to, id=self._new_id(), **header)

    def _notified(
        self, sender: str, method: str, params: Any, to: tuple[str, ...] | None, **header: Any
    ) -> list[Effect]:
        body = payloads.notification(method, params)
        addressees = (self.name,) if to is None else to
        return self.hears(kinds.MCP_REQUEST, body, sender=sender, to=addressees, **header)

    def proposal(
        self,
        sender: str,
        id: str,
        *,
        to: tuple[str, ...] = (),
        params: dict[str, Any] | None = None,
        method: str = "tools/call",
        ts: str | None = None,
    ) -> list[Effect]:
        """Another participant's proposal arrives; broadcast unless told otherwise."""
        body = payloads.proposal(method, params or CALL)
        return self.hears(kinds.MCP_PROPOSAL, body, sender=sender, id=id, to=to, ts=ts)

    def withdraw(
        self, sender: str, proposal: str, reason: Any = "no_longer_needed", *, id: str | None = None
    ) -> list[Effect]:
        return self._decided(kinds.MCP_WITHDRAW, sender, proposal, reason, id)

    def reject(
        self, sender: str, proposal: str, reason: Any = "unsafe", *, id: str | None = None
    ) -> list[Effect]:
        return self._decided(kinds.MCP_REJECT, sender, proposal, reason, id)

    def _decided(
        self, kind: str, sender: str, proposal: str, reason: Any, id: str | None
    ) -> list[Effect]:
        name, about = id or self._new_id(), (proposal,)
        return self.hears(kind, {"reason": reason}, sender=sender, id=name, correlation=about)

    def response(
        self,
        sender: str,
        request: str,
        *,
        to: tuple[str, ...] | None = None,
        result: Any = None,
        error: Any = None,
        id: str | None = None,
    ) -> list[Effect]:
        """Another participant's response arrives; addressed to us unless told otherwise."""
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": request}
        if error is None:
            body["result"] = {"content": []} if result is None else result
        else:
            body["error"] = error
        return self.hears(
            kinds.MCP_RESPONSE,
            body,
            sender=sender,
            id=id or self._new_id(),
            to=(self.name,) if to is None else to,
            correlation=(request,),
        )

    def sees_fulfilled(self, proposal: str, request: str = "b1", **options: Any) -> list[Effect]:
        """Bob asks the tool to carry a proposal out, and it does."""
        self.request("bob", request, to=("tool",), fulfills=proposal, **options)
        return self.response("tool", request, to=("bob",))

    # --- what we do ---

    def begins_request(
        self,
        to: tuple[str, ...] = ("tool",),
        *,
        method: str = "tools/call",
        deadline: float | None = 60.0,
        sent: bool = True,
        **options: Any,
    ) -> Key:
        """We make a request; ``deadline`` counts from now."""
        request_id = self._new_id()
        fulfills: ProposalKey | None = options.get("fulfills")
        meta = options.pop("meta", None)
        if meta is None and fulfills is not None:
            meta = {payloads.PROPOSER: fulfills.proposer}
        params = CALL if meta is None else {**CALL, "_meta": meta}
        if fulfills is not None:
            even_if_gone = options.pop("even_if_gone", False)
            follows = options.pop("follows", False)
            options["fulfills"] = FulfillmentTarget(
                fulfills, even_if_gone=even_if_gone, follows=follows
            )
        return self._begins(
            draft(
                kinds.MCP_REQUEST,
                payloads.request(method, params, request_id),
                id=request_id,
                sender=self.name,
                to=to,
                correlation=() if fulfills is None else (fulfills.id,),
            ),
            deadline=deadline,
            sent=sent,
            **options,
        )

    def begins_proposal(
        self,
        to: tuple[str, ...] = (),
        *,
        params: dict[str, Any] | None = None,
        deadline: float | None = 60.0,
        sent: bool = True,
        wait: Wait = Wait.ADDRESSED,
        **options: Any,
    ) -> Key:
        """We propose something; ``deadline`` counts from now."""
        return self._begins(
            draft(
                kinds.MCP_PROPOSAL,
                payloads.proposal("tools/call", params or CALL),
                id=self._new_id(),
                sender=self.name,
                to=to,
            ),
            deadline=deadline,
            sent=sent,
            wait=wait,
            **options,
        )

    def _begins(
        self, envelope: Envelope, *, deadline: float | None, sent: bool, **options: Any
    ) -> Key:
        at = None if deadline is None else self.now + deadline
        key, effects = self.table.open(envelope, now=self.now, deadline=at, **options)
        self.did(effects)
        if sent:
            self.did(self.table.sent(key.id, self.now)[1])
            self.echo(envelope)
        return key

    def gives_up(self, key: Key, reason: str = Reason.NO_LONGER_NEEDED) -> list[Effect]:
        return self.did(self.table.give_up(key, Cause(reason, self.name), self.now))

    def rejects(self, proposer: str, proposal: str, reason: str = "unsafe") -> Envelope:
        envelope, effects = self.table.reject(ProposalKey(proposer, proposal), reason, self.now)
        self.did(effects)
        return envelope

    def returns(self, key: Key, result: Any = None) -> list[Effect]:
        value = {"content": []} if result is None else result
        return self.did(self.table.returned(key, value, self.now))

    def raises(self, key: Key, code: int = -32603, data: Any = None) -> list[Effect]:
        return self.did(self.table.raised(key, code, "the handler failed", data, self.now))

    def loses_connection(self) -> list[Effect]:
        return self.did(self.table.connection_lost(self.now))

    def shuts_down(self) -> list[Effect]:
        return self.did(self.table.shutdown(self.now))

    def ends_grace(self) -> list[Effect]:
        return self.did(self.table.shutdown_over(self.now))

    def passes(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.did(self.table.tick(self.now))

    # --- what can be seen ---

    def record(self, proposer: str, proposal: str) -> ProposalEntry:
        record = self.table.proposal_store.get(ProposalKey(proposer, proposal), self.now)
        assert record is not None
        return record

    def own(self, key: Key) -> ProposalEntry:
        return self.record(self.name, key.id)

    def ending(self, key: Key) -> Ending:
        """The ending of an exchange of ours; fails unless its caller was woken once."""
        (wake,) = [wake for wake in of(self.effects, Wake) if wake.key == key]
        return wake.ending

    def ended(self, key: Key, kind: type[T]) -> T:
        ending = self.ending(key)
        assert isinstance(ending, kind), ending
        return ending

    def is_waiting(self, key: Key) -> bool:
        return not any(wake.key == key for wake in of(self.effects, Wake))


CALL: dict[str, Any] = {"name": "write", "arguments": {"path": "a.txt"}}
"""The parameters of the tool call that most tests are about."""


def of(effects: Iterable[Effect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def said(effects: Iterable[Effect], kind: str | None = None) -> list[Envelope]:
    return [send.draft for send in of(effects, Send) if kind in (None, send.draft.kind)]


def cancels_said(effects: Iterable[Effect]) -> list[Envelope]:
    requests = said(effects, kinds.MCP_REQUEST)
    return [envelope for envelope in requests if envelope.payload["method"] == kinds.CANCELLED]


def started(effects: Iterable[Effect], role: Role | None = None) -> list[Key]:
    return [start.key for start in of(effects, Start) if role in (None, start.work.role)]


def cancelled(effects: Iterable[Effect]) -> dict[Key, Cause]:
    """The handlers that are to be cancelled, with the cause."""
    return {cancel.key: cancel.cause for cancel in of(effects, Cancel)}


def woken(effects: Iterable[Effect]) -> dict[Key, Ending]:
    """The callers that are told of an end, and of which."""
    return {wake.key: wake.ending for wake in of(effects, Wake)}


def dropped(effects: Iterable[Effect]) -> list[str]:
    return [drop.why for drop in of(effects, Drop)]


def unsent(effects: Iterable[Effect]) -> list[str]:
    """The ids that are taken out of the outbox."""
    return [unsend.id for unsend in of(effects, Unsend)]

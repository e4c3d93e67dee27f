"""A participant of the world in miniature: its table, its frames in flight, and its checks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meup_agent import Envelope, Limits, ProposalState, Reason, Wait
from meup_agent.errors import AlreadyDecided, AlreadyInProgress, ParticipantGone
from meup_agent.protocol.proposals import resolve
from meup_agent.types import Cause
from tests.tables import (
    Cancel,
    CaughtUp,
    Drop,
    Effect,
    ExchangeTable,
    FulfillmentTarget,
    Key,
    Priority,
    Progressed,
    ProposalEntry,
    ProposalKey,
    Role,
    Send,
    Start,
    Unsend,
    Wake,
    Work,
)
from tests.wire import Ending, Unknown, decode, draft, encode, kinds, payloads

if TYPE_CHECKING:
    from tests.properties.world import World

DIALECT = "meup/v0.1"

REMEMBERED = 300.0
"""Seconds for which ends are said again to those who may have missed them (PROTOCOL 4.14)."""


@dataclass(slots=True)
class Handler:
    """A handler that runs.

    Attributes:
        work: What it was started with.
        record: The proposal that it is for: one that comes again under its id has another.
        times: The number of times that its request had been made as it began.
        cancelled: Its scope was cancelled; it may swallow that.
        awaited: The exchanges that it awaits.
    """

    work: Work
    record: ProposalEntry | None
    times: int
    cancelled: bool = False
    awaited: set[Key] = field(default_factory=set[Key])


@dataclass(slots=True)
class Asked:
    """A request of another's, as often as it was made.

    Attributes:
        times: The messages that made it; a copy is none (PROTOCOL 6).
        answered: Those of them that were answered.
        silenced: Those that get no answer any more: made again, or the handler was cancelled.
    """

    times: int = 0
    answered: int = 0
    silenced: int = 0


class Participant:
    """A table with an outbox, handlers that do as they are told, and waiters."""

    def __init__(self, world: World, name: str, limits: Limits) -> None:
        self.world = world
        self.name = name
        self.table = ExchangeTable(
            new_id=self._new_id,
            find_handler=self._wants,
            limits=limits,
            wall_clock=world.time_of_day,
        )
        self.handlers: dict[Key, Handler] = {}
        self.endings: dict[Key, Ending | None] = {}
        self.ended_at: dict[Key, float] = {}
        self.fulfills: dict[str, ProposalKey] = {}
        self.asked: defaultdict[tuple[str, str], Asked] = defaultdict(Asked)
        self.blind: set[str] = set()
        """Fulfilling requests of proposals that we missed: two of one cannot be told apart."""
        self.urgent: deque[Send] = deque()
        self.ordered: deque[Send] = deque()
        self.unaccepted: dict[str, Send] = {}
        """Ids of envelopes to a gateway that numbers them, which have not come back."""
        self.owed: set[str] = set()
        """Ids of envelopes that must be taken unless refused, or not waited for."""
        self.copied: dict[str, str] = {}
        self._first_said: dict[tuple[Any, ...], str] = {}
        self.uplink: deque[bytes] = deque()
        self.downlink: deque[tuple[bytes, int | None]] = deque()
        self.online = False
        self.shut_down = False
        self._ids = 0

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"

    def _wants(self, role: Role, *_: object) -> bool:
        return role not in (Role.KIND, Role.CHAT, Role.JOIN, Role.LEAVE)

    # --- the session in miniature ---

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out what the table decided."""
        ended_with: list[Key] = []
        for effect in effects:
            match effect:
                case Send():
                    self._check_said(effect)
                    self._note_copy(effect)
                    lane = self.urgent if effect.priority is Priority.END else self.ordered
                    if all(waiting.draft.id != effect.draft.id for waiting in lane):
                        lane.append(effect)
                case Unsend():
                    self.ordered = deque(
                        waiting for waiting in self.ordered if waiting.draft.id != effect.id
                    )
                case Start():
                    assert effect.key not in self.handlers, "a handler was started twice"
                    store, now = self.table.proposal_store, self.world.now
                    envelope = effect.work.envelope
                    record = store.get(ProposalKey(envelope.sender, envelope.id), now)
                    times = self.asked[envelope.sender, envelope.id].times
                    self.handlers[effect.key] = Handler(effect.work, record, times)
                    if resolve(envelope, store, now).record is None:
                        self.blind.add(envelope.id)
                case Cancel():
                    ended_with += self.handlers[effect.key].awaited
                    self._cancel(effect)
                case Wake():
                    assert effect.key in self.endings, "somebody was woken who does not wait"
                    assert self.endings[effect.key] is None, "a waiter was woken twice"
                    self._check_known(effect)
                    self._take_back(effect.key.id)
                    self.endings[effect.key] = effect.ending
                    self.ended_at[effect.key] = self.world.now
                    self._resume(effect.key)
                case CaughtUp():
                    self._caught_up(complete=effect.gap is None)
                case Progressed() | Drop():
                    pass
        assert all(self.endings[key] is not None for key in ended_with), (
            "something outlived the handler that it belongs to"
        )

    def _check_known(self, wake: Wake) -> None:
        """Nothing that was sent ends unknown once we have caught up, where nothing is lost."""
        table, world = self.table, self.world
        waits = any(send.draft.id == wake.key.id for send in self.ordered)
        if world.resumes and world.lossless and table.connected and table.caught_up and not waits:
            assert not isinstance(wake.ending, Unknown), "an end is unknown and nothing was lost"

    def _take_back(self, opening: str) -> None:
        """It is not waited for any more, so it is not sent again."""
        self.unaccepted.pop(opening, None)
        self.owed.discard(opening)
        self.ordered = deque(each for each in self.ordered if each.draft.id != opening)

    def _caught_up(self, *, complete: bool) -> None:
        """Send again what the gateway has not taken, before anything else."""
        lost = [] if not complete else list(self.unaccepted.values())
        self.unaccepted.clear()
        for send in reversed(lost):
            lane = self.urgent if send.priority is Priority.END else self.ordered
            if all(waiting.draft.id != send.draft.id for waiting in lane):
                lane.appendleft(send)

    def _note_copy(self, send: Send) -> None:
        """A message that is said again to a gateway that delivers nothing twice has another id."""
        said = send.draft
        mark = (said.kind, said.to, said.correlation, said.raw_payload)
        first = self._first_said.setdefault(mark, said.id)
        if send.again and first != said.id:
            self.copied[said.id] = first

    def _check_said(self, send: Send) -> None:
        said = send.draft
        if said.kind == kinds.MCP_RESPONSE and not send.again:
            asked = self.asked[said.to[0], said.correlation[0]]
            asked.answered += 1
            assert asked.answered + asked.silenced <= asked.times, (
                "an answer came after the cancel took effect, or a second one"
            )
        if said.kind == kinds.MCP_REQUEST:
            call = payloads.read_call(said.payload)
            own = any(key.id == said.id for key in self.endings)
            assert call.is_notification or own, "the table made a request that nobody decided"

    def _cancel(self, cancel: Cancel) -> None:
        handler = self.handlers[cancel.key]
        assert not handler.cancelled, "a handler was cancelled twice"
        handler.cancelled = True
        if handler.work.role is Role.REQUEST:
            envelope = handler.work.envelope
            asked = self.asked[envelope.sender, envelope.id]
            asked.silenced = handler.times - asked.answered

    def _resume(self, key: Key) -> None:
        for handler_key, handler in list(self.handlers.items()):
            if key in handler.awaited:
                handler.awaited.discard(key)
                self.apply(self.table.count_waits(handler_key, -1, self.world.now))

    def transmit(self) -> bool:
        """Hand one envelope to the connection."""
        if not self.online or not self.table.connected or not (self.urgent or self.ordered):
            return False
        if not self.table.caught_up:
            return False
        send = self.urgent.popleft() if self.urgent else self.ordered.popleft()
        if send.priority is Priority.OPEN:
            fulfills = self.fulfills.get(send.draft.id)
            if fulfills is not None:
                record = self.table.proposal_store.get(fulfills, self.world.now)
                assert record is None or record.state is not ProposalState.WITHDRAWN, (
                    "a fulfillment was sent after its withdraw had been seen"
                )
            leaves, effects = self.table.sent(send.draft.id, self.world.now)
            self.apply(effects)
            if not leaves:
                return True
        if self.table.seq is not None:
            self.unaccepted[send.draft.id] = send
            self.owed.add(send.draft.id)
        self.uplink.append(encode(send.draft, DIALECT))
        return True

    def deliver(self, *, twice: bool = False) -> bool:
        """Take one frame from the connection; a fault may deliver it twice."""
        if not self.downlink:
            return False
        frame, seq = self.downlink.popleft()
        for _ in range(2 if twice else 1):
            envelope = decode(frame)
            if seq is not None and envelope.sender == self.name:
                self.unaccepted.pop(envelope.id, None)
            elif envelope.kind == kinds.SYSTEM_ERROR:
                for name in envelope.correlation:
                    self.unaccepted.pop(name, None)
                    self.owed.discard(name)
            self._note_asked(envelope, seq)
            self.apply(self.table.receive(envelope, self.world.now, seq))
        return True

    def _note_asked(self, envelope: Envelope, seq: int | None) -> None:
        """Count a request: a new number makes another one of it, but for approvals (PROTOCOL 6)."""
        if envelope.kind == kinds.MCP_REQUEST:
            asked = self.asked[envelope.sender, envelope.id]
            is_new = seq is not None and seq > (self.table.seq or 0)
            if asked.times == 0 or (is_new and not envelope.correlation):
                asked.silenced = asked.times - asked.answered
                asked.times += 1

    # --- what a program does ---

    def open(
        self,
        envelope: Envelope,
        *,
        seconds: float,
        parent: Key | None,
        wait: Wait = Wait.ADDRESSED,
        idempotent: bool = False,
        fulfills: ProposalKey | None = None,
    ) -> None:
        """Begin an exchange; a handler awaits what it begins."""
        if parent is not None and parent not in self.handlers:
            parent = None
        try:
            key, effects = self.table.open(
                envelope,
                now=self.world.now,
                deadline=self.world.now + seconds,
                parent=parent,
                wait=wait,
                idempotent=idempotent,
                fulfills=None if fulfills is None else FulfillmentTarget(fulfills),
            )
        except (AlreadyInProgress, AlreadyDecided, ParticipantGone):
            return
        if fulfills is not None:
            self._check_free(fulfills, key)
            self.fulfills[envelope.id] = fulfills
        self.endings[key] = None
        self.apply(effects)
        if parent is not None:
            self.handlers[parent].awaited.add(key)
            self.apply(self.table.count_waits(parent, +1, self.world.now))

    def _check_free(self, proposal: ProposalKey, ours: Key) -> None:
        """A fulfillment may begin only if no other is known to be on its way."""
        others = [key for key in self.waiting() if self.fulfills.get(key.id) == proposal]
        assert others == [], f"{ours} fulfills what we fulfill already"
        record = self.table.proposal_store.get(proposal, self.world.now)
        assert record is None or record.state is ProposalState.PENDING, (
            "a fulfillment began of what is decided or in progress"
        )

    def request(
        self,
        to: tuple[str, ...],
        *,
        seconds: float,
        parent: Key | None = None,
        idempotent: bool = False,
        fulfills: ProposalKey | None = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        """Make a request."""
        request_id = self._new_id()
        body = payloads.request("tools/call", params or {"name": "work"}, request_id)
        envelope = draft(
            kinds.MCP_REQUEST,
            body,
            id=request_id,
            sender=self.name,
            to=to,
            correlation=() if fulfills is None else (fulfills.id,),
        )
        self.open(
            envelope, seconds=seconds, parent=parent, idempotent=idempotent, fulfills=fulfills
        )

    def propose(
        self,
        to: tuple[str, ...],
        *,
        seconds: float,
        wait: Wait,
        parent: Key | None = None,
        idempotent: bool = False,
    ) -> None:
        """Make a proposal."""
        body = payloads.proposal("tools/call", {"name": "work", "arguments": {"n": 1}})
        envelope = draft(kinds.MCP_PROPOSAL, body, id=self._new_id(), sender=self.name, to=to)
        self.open(envelope, seconds=seconds, parent=parent, wait=wait, idempotent=idempotent)

    def fulfill(
        self, record: ProposalEntry, executor: str, *, edited: bool, parent: Key | None = None
    ) -> None:
        """Decide for a proposal; sometimes with other arguments."""
        params = {"name": "work", "arguments": {"n": 2 if edited else 1}}
        self.request((executor,), seconds=60, parent=parent, fulfills=record.key, params=params)

    def reject(self, proposal: ProposalKey) -> None:
        """Decide against a proposal."""
        _, effects = self.table.reject(proposal, Reason.UNSAFE, self.world.now)
        self.apply(effects)

    def give_up(self, key: Key) -> None:
        """Stop waiting."""
        cause = Cause(Reason.POLICY, self.name)
        self.apply(self.table.give_up(key, cause, self.world.now))

    def end(self, key: Key, *, raises: bool = False) -> None:
        """End a handler; one that was cancelled and returns has swallowed it."""
        awaited = self.handlers.pop(key).awaited
        if raises:
            effects = self.table.raised(key, -32603, "failed", None, self.world.now)
        else:
            effects = self.table.returned(key, {"content": []}, self.world.now)
        self.apply(effects)
        assert not self.table.is_open(key)
        assert all(self.endings[child] is not None for child in awaited), (
            "something outlived the handler that it belongs to"
        )

    def waiting(self) -> list[Key]:
        """Exchanges whose end was not told."""
        return [key for key, ending in self.endings.items() if ending is None]

"""A real space in which proposals wait: programs that seldom decide, clocks, crashes, losses."""

from __future__ import annotations

import math
from collections import deque
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

from meup_agent import Envelope, ProposalState, Reason
from meup_agent.errors import MeupError
from meup_agent.protocol.proposals import ProposalEntry
from meup_agent.types import Cause
from tests.properties.hosted import Seat
from tests.spaces import Audit, MemoryJournal, space_server
from tests.tables import (
    Effect,
    ExchangeTable,
    FulfillmentTarget,
    Key,
    Priority,
    ProposalKey,
    Role,
    Send,
    Start,
    Unsend,
    Wake,
)
from tests.wire import decode, draft, encode, kinds, last_moment, payloads, read_seq

DIALECT: Final = "meup/v0.1"
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
CLOCKS: Final = {"p": -86_400, "d1": 0, "d2": 7_200, "e": -600}
"""Seconds by which the clock of each participant is wrong."""

TRANSIT: Final = 5.0
"""Seconds that a reader waits for what was in time and is on its way."""

CALL: Final = {"name": "work", "arguments": {"n": 1}}

_LATE: Final = {ProposalState.EXPIRED: {ProposalState.WITHDRAWN}}


class Process:
    """One process of a participant: its table, and what is on its way."""

    def __init__(self, world: SilentWorld, name: str) -> None:
        self.world, self.name = world, name
        self.seat: Seat | None = None
        self.outbox: deque[tuple[Envelope, Priority]] = deque()
        self.unaccepted: dict[str, tuple[Envelope, Priority]] = {}
        self.unread_since: float | None = None
        self.missed: set[str] = set()
        """What it took as expired while a frame was longer on its way than it waits (4.2)."""
        self.table = ExchangeTable(
            new_id=lambda: f"{name}.{next(world.ids)}",
            find_handler=lambda role, *_: role in (Role.REQUEST, Role.PROPOSAL, Role.EXPIRE),
            wall_clock=lambda: world.time + timedelta(seconds=CLOCKS[name]),
        )

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.outbox.append((effect.draft, effect.priority))
                case Unsend(id=gone) | Wake(key=Key(id=gone)):
                    self.unaccepted.pop(gone, None)
                    kept = [each for each in self.outbox if each[0].id != gone]
                    self.outbox = deque(kept)
                case Start() if effect.work.role is Role.REQUEST:
                    self.world.runs(self.name, effect.work.envelope)
                case _:
                    pass

    def connect(self) -> None:
        self.cut()
        self.seat = Seat(self.name, self.table.seq, DIALECT)
        self.world.host.join(self.seat)
        self.hear(1_000)

    def cut(self) -> None:
        if self.seat is not None:
            self.seat.close(1006, "")
            self.world.host.leave(self.seat)
            self.seat = None
            self.apply(self.table.connection_lost(self.world.now))

    def hear(self, at_most: int) -> None:
        seat = self.seat
        while seat is not None and at_most:
            if not seat.wire:
                seat.go_on()
                if not seat.wire:
                    self.unread_since = None
                    return
            frame = seat.wire.popleft()
            envelope, was_caught_up = decode(frame), self.table.caught_up
            if envelope.sender == self.name:
                self.unaccepted.pop(envelope.id, None)
            self.apply(self.table.receive(envelope, self.world.now, read_seq(frame)))
            if self.table.caught_up and (not was_caught_up or envelope.kind == "system/welcome"):
                self.outbox.extendleft(reversed(self.unaccepted.values()))
                self.unaccepted.clear()
            at_most -= 1

    def note_delay(self, before: float) -> None:
        """Note what has expired, after a time in which frames were to be read."""
        if self.seat is None or not self.seat.wire:
            self.unread_since = None
            return
        self.unread_since = before if self.unread_since is None else self.unread_since
        if self.world.now - self.unread_since > TRANSIT:
            records = self.table.proposal_store.records(self.world.now)
            self.missed |= {
                each.key.id
                for each in records
                if self.table.state_of(each, self.world.now) is ProposalState.EXPIRED
            }

    def say(self, at_most: int) -> None:
        while self.seat is not None and self.table.caught_up and self.outbox and at_most:
            envelope, priority = self.outbox.popleft()
            if priority is Priority.OPEN:
                self.apply(self.table.sent(envelope.id, self.world.now)[1])
                if not self.table.is_open(Key("out", self.name, envelope.id)):
                    continue
            self.unaccepted[envelope.id] = (envelope, priority)
            self.world.host.receive(self.seat, encode(envelope, DIALECT))
            at_most -= 1


class SilentWorld:
    """A proposer, two deciders and an executor around a gateway that may be killed."""

    def __init__(self) -> None:
        self.ids = count(1)
        self.now = 1000.0
        self.journal = MemoryJournal(self.microseconds)
        self.decided: set[str] = set()
        self.ran: list[str] = []
        self.start()
        self.processes = {name: Process(self, name) for name in CLOCKS}
        for each in self.processes.values():
            each.connect()

    @property
    def time(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now - 1000)

    def microseconds(self) -> int:
        return round(self.time.timestamp() * 1_000_000)

    def start(self) -> None:
        self.host = space_server(
            {name: [{"kind": "mcp/*"}] for name in CLOCKS},
            self.microseconds,
            journal=self.journal,
            new_id=lambda: f"g{next(self.ids)}",
        )

    # --- what happens ---

    def passes(self, seconds: float) -> None:
        """Time passes; each process looks whenever its own deadlines come."""
        before, until, rounds = self.now, self.now + seconds, 0
        while True:
            rounds += 1
            assert rounds < 5_000, "a timer rings without end"
            dues = [each.table.next_deadline() for each in self.processes.values()]
            due = min((at for at in dues if at is not None), default=math.inf)
            self.now = max(self.now, min(due, until))
            for each in self.processes.values():
                each.apply(each.table.tick(self.now))
            if due > until:
                self.now = until
                break
        for each in self.processes.values():
            each.note_delay(before)

    def kill_gateway(self) -> None:
        for each in self.processes.values():
            if each.seat is not None:
                each.seat = None
                each.apply(each.table.connection_lost(self.now))
        self.start()

    def crash(self, name: str) -> None:
        self.processes[name].cut()
        self.processes[name] = Process(self, name)

    def propose(self, ttl: float | None, *, foreign: bool) -> None:
        process = self.processes["p"]
        if not process.table.roster.me:
            return
        name = f"P{next(self.ids)}"
        moment = process.table.moment(self.now)
        assert moment is not None
        expires = datetime.fromtimestamp(moment / 1_000_000, UTC) + timedelta(seconds=ttl or 0)
        body = payloads.build_proposal(
            "tools/call", CALL, target="e", expires=None if ttl is None or foreign else expires
        )
        if foreign and ttl is not None:
            body["ttl"] = ttl * 1000
        _, effects = process.table.open(
            draft(kinds.MCP_PROPOSAL, body, id=name, sender="p"),
            now=self.now,
            deadline=None if ttl is None else self.now + ttl,
        )
        process.apply(effects)

    def own(self) -> list[Key]:
        """The keys of the proposer's own."""
        return [Key("out", "p", each.key.id) for each in self.known("p")]

    def known(self, name: str) -> list[Any]:
        return self.processes[name].table.proposal_store.records(self.now)

    def renew(self, index: int, seconds: float) -> None:
        keys = self.own()
        if keys:
            try:
                _, effects = self.processes["p"].table.renew(
                    keys[index % len(keys)], seconds, self.now
                )
            except MeupError:
                return
            self.processes["p"].apply(effects)

    def withdraw(self, index: int) -> None:
        keys = self.own()
        if keys:
            process = self.processes["p"]
            cause = Cause(Reason.POLICY, "p")
            process.apply(process.table.give_up(keys[index % len(keys)], cause, self.now))

    def reject(self, decider: str, index: int) -> None:
        known, process = self.known(decider), self.processes[decider]
        if known:
            key = known[index % len(known)].key
            process.apply(process.table.reject(key, "unsafe", self.now)[1])

    def decide(self, decider: str, index: int, *, even_if_gone: bool) -> None:
        """A program fulfills: the one thing that makes a request."""
        known, process = self.known(decider), self.processes[decider]
        if not known or not process.table.roster.me:
            return
        record: ProposalEntry = known[index % len(known)]
        params, _ = payloads.build_fulfillment(record.call, None, "e", proposer="p")
        request_id = process.table.new_id()
        request = draft(
            kinds.MCP_REQUEST,
            payloads.request("tools/call", params, request_id),
            id=request_id,
            sender=decider,
            to=("e",),
            correlation=(record.key.id,),
        )
        fulfills = FulfillmentTarget(ProposalKey("p", record.key.id), record, even_if_gone, True)
        try:
            _, effects = process.table.open(request, now=self.now, deadline=None, fulfills=fulfills)
        except MeupError:
            return
        self.decided.add(request_id)
        process.apply(effects)

    # --- what must hold ---

    def runs(self, executor: str, request: Envelope) -> None:
        assert executor == "e"
        assert request.id in self.decided, "what no program decided was begun"
        self.ran.append(request.correlation[0])

    def check(self) -> None:
        """Each request was made by a program's decision, in time, of what was pending."""
        audit = Audit()
        ring = self.journal.recover("demo", since=0, limit=1_000_000).entries
        for entry in ring:
            envelope = entry.envelope
            if envelope.kind == kinds.MCP_REQUEST and envelope.correlation:
                call = payloads.read_call(envelope.payload)
                if not call.is_notification:
                    assert envelope.id in self.decided, "silence became a request"
                    audit.pass_time(entry.at)
                    found = audit.named(envelope.correlation[0])
                    assert found, "a request for what was never proposed"
                    assert found[0].state.is_pending, f"a request for what is {found[0].state}"
                    expires_at = found[0].record.expires_at
                    assert (
                        expires_at is None
                        or entry.at <= last_moment(expires_at)
                        or (found[0].record.in_progress is not None)
                    )
            audit.add(entry)
        self.check_agreement(audit)

    def check_agreement(self, audit: Audit) -> None:
        """A reader of everything has for each proposal the state that the audit has."""
        audit.pass_time(self.microseconds())
        for process in self.processes.values():
            read_all = process.seat is not None and not process.seat.wire
            if not read_all or not process.table.caught_up or process.name == "p":
                continue
            moment = process.table.moment(self.now)
            if moment is None or abs(moment - self.microseconds()) > 5_000_000:
                continue  # its welcome was longer on its way than any connection lasts
            for record in process.table.proposal_store.records(self.now):
                if record.key.id in process.missed:
                    continue
                if record.expires_at is not None and not (
                    abs(self.microseconds() - last_moment(record.expires_at)) > 6_000_000
                ):
                    continue  # it may still be told of what was in time
                theirs = process.table.state_of(record, self.now)
                (found,) = audit.named(record.key.id)
                # Who was away does not know when a ttl of another make began; and that a withdraw
                # came too late is the audit's word, for no reader has the time of its acceptance.
                if record.call.ttl is None:
                    expected = {found.state} | _LATE.get(found.state, set())
                    assert theirs in expected, f"{process.name} has {theirs}, not {found.state}"

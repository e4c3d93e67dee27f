"""A space in miniature: a few exchange tables, a gateway that interleaves as it is told, no clock.

Frames are in flight on both ways of each connection and are lost with it. In some worlds the
gateway numbers what it says, and who comes back reads what it missed: there nothing is lost at all,
unless the gateway forgets it. The world checks, at each step, what must hold at each step;
:meth:`World.settle` brings everybody back, lets everything end, and checks what must hold then.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from meup_agent import Envelope, Fulfillment, Limits, ProposalState
from tests.properties.audited import check_audit, check_own
from tests.properties.participant import DIALECT, REMEMBERED, Handler, Participant
from tests.tables import Key, ProposalKey
from tests.wire import (
    ARRIVED,
    OURS,
    GatewayRefused,
    Responded,
    decode,
    draft,
    encode,
    kinds,
    payloads,
    said_by,
)

CAPABILITIES = [{"kind": "mcp/request"}, {"kind": "mcp/proposal"}]

LONG = 400.0
"""Seconds beyond every deadline, grace and memory of the table."""


class World:
    """Participants around one gateway.

    Args:
        count: How many.
        handlers: How many handlers each runs at once.
        resumes: The gateway numbers what it says, and who comes back reads what it missed.
    """

    def __init__(self, count: int, *, handlers: int = 64, resumes: bool = False) -> None:
        self.now = 1000.0
        self.resumes = resumes
        self.seq = self.floor = 1_000_000
        self.history: list[tuple[int, bytes]] = []
        self.recent: dict[tuple[str, str], tuple[Any, int]] = {}
        limits = Limits(handlers=handlers, queued=8)
        self.names = [f"p{number}" for number in range(count)]
        self.participants = {name: Participant(self, name, limits) for name in self.names}
        self.log: list[Envelope] = []
        self.ends_beside: dict[str, str] = {}
        """What was withdrawn or cancelled beside its participant, by the envelopes that did so."""
        self.present: list[str] = []
        self.lossless = True
        self._ids = 0
        for name in self.names:
            self.connect(name)
        self.drain()

    def time_of_day(self) -> datetime:
        """The same moment for all, as a wall clock says it."""
        return datetime.fromtimestamp(self.now, UTC)

    # --- the gateway ---

    def _gateway_says(self, kind: str, payload: Any, readers: Iterable[str], **header: Any) -> None:
        self._ids += 1
        envelope = draft(kind, payload, id=f"g-{self._ids}", sender=kinds.GATEWAY, **header)
        self._deliver(encode(envelope, DIALECT), readers, private=bool(envelope.to))

    def _deliver(self, frame: bytes, readers: Iterable[str], *, private: bool = False) -> None:
        """Put a frame on the way to those who are there, and into history if it is for all."""
        if self.resumes and not private:
            self.seq += 1
            self.history.append((self.seq, frame))
        for name in readers:
            if self.participants[name].online:
                self.participants[name].downlink.append((frame, self.seq if self.resumes else None))

    def connect(self, name: str) -> None:
        """A new connection: a welcome, and a join for all."""
        participant = self.participants[name]
        if participant.online:
            return
        participant.online = True
        if name not in self.present:
            self.present.append(name)
        described = {other: {"id": other, "capabilities": CAPABILITIES} for other in self.present}
        others = [described[other] for other in self.present if other != name]
        welcome = {"you": described[name], "participants": others}
        joined: dict[str, Any] = {"event": "join", "participant": described[name]}
        if self.resumes:
            self._resume(participant, welcome, joined)
        else:
            self._gateway_says(kinds.SYSTEM_WELCOME, welcome, [name], to=(name,))
        self._gateway_says(kinds.SYSTEM_PRESENCE, joined, self.names)

    def _resume(
        self, participant: Participant, welcome: dict[str, Any], joined: dict[str, Any]
    ) -> None:
        """Welcome a participant with what it missed, and say of it that it needs nothing else."""
        seen = participant.table.seq
        gap = seen is not None and not self.floor <= seen <= self.seq
        begin = self.seq if seen is None else self.floor if gap else seen
        if seen is None:
            participant.unaccepted.clear()
        welcome |= {"resumed": seen is not None, "until": self.seq, "gap": gap, **said_by(OURS)}
        joined[ARRIVED] = "new" if seen is None else "gap" if gap else "resumed"
        until, self.seq = self.seq, begin
        self._gateway_says(
            kinds.SYSTEM_WELCOME, welcome, [participant.name], to=(participant.name,)
        )
        self.seq = until
        participant.downlink += [(frame, seq) for seq, frame in self.history if seq > begin]

    def forget(self, count: int) -> None:
        """The gateway has no room for its oldest words any more."""
        forgotten, self.history = self.history[:count], self.history[count:]
        if forgotten:
            self.floor = forgotten[-1][0]
            if any(self.floor > (each.table.seq or 0) for each in self.participants.values()):
                self.lossless = False

    def drop(self, name: str, *, arrived: int, noticed: bool) -> None:
        """A connection breaks: what is in flight is lost, but for what had arrived already."""
        participant = self.participants[name]
        if not participant.online:
            return
        for _ in range(arrived):
            self.route(name)
        if not self.resumes:
            self.lossless = False
        welcomed = participant.table.connected
        participant.online = False
        participant.uplink.clear()
        participant.downlink.clear()
        if welcomed:
            participant.apply(participant.table.connection_lost(self.now))
        if noticed and name in self.present:
            self.present.remove(name)
            left = {"event": "leave", "participant": {"id": name}}
            self._gateway_says(kinds.SYSTEM_PRESENCE, left, self.names)

    def restart(self, *, remembers: bool = False) -> None:
        """The gateway is killed and started again: every connection breaks.

        Args:
            remembers: It has written down what it took, so only who is there is forgotten.
        """
        for name in self.names:
            self.drop(name, arrived=0, noticed=False)
        self.present.clear()
        if not remembers:
            self.lossless = False
            self.seq += 1000
            self.floor = self.seq
            self.history.clear()
            self.recent.clear()

    def route(self, name: str) -> bool:
        """Order one envelope of a participant, and put it on everybody's way."""
        uplink = self.participants[name].uplink
        if not uplink:
            return False
        frame = uplink.popleft()
        envelope = decode(frame)
        mark = (envelope.kind, envelope.to, envelope.correlation, envelope.raw_payload)
        known = self.recent.get((name, envelope.id))
        if self.resumes and known is not None and known[0] == mark:
            self.participants[name].downlink.append((frame, known[1]))
            return True
        self.log.append(envelope)
        self._deliver(frame, self.names)
        self.recent[name, envelope.id] = (mark, self.seq)
        return True

    def beside(
        self, name: str, kind: str, payload: Any, *, to: tuple[str, ...] = (), about: str = ""
    ) -> None:
        """Send an envelope under a participant's name without its connection."""
        self._ids += 1
        said_id = f"beside-{self._ids}"
        if kind == kinds.MCP_REQUEST and "method" not in payload:
            payload = payloads.request("tools/call", payload, said_id)
        about_what = (about,) if about else ()
        if Key("out", name, about) in self.participants[name].endings:
            self.ends_beside[said_id] = about
        said = draft(kind, payload, id=said_id, sender=name, to=to, correlation=about_what)
        frame = encode(said, DIALECT)
        self.log.append(decode(frame))
        self._deliver(frame, self.names)

    def refuse(self, name: str) -> bool:
        """Refuse the next envelope of a participant, if it begins something."""
        uplink = self.participants[name].uplink
        if not uplink:
            return False
        envelope = decode(uplink[0])
        if envelope.id not in {key.id for key in self.participants[name].endings}:
            return False
        uplink.popleft()
        error = {"error": "capability_violation", "message": "no"}
        self._gateway_says(
            kinds.SYSTEM_ERROR, error, [name], to=(name,), correlation=(envelope.id,)
        )
        return True

    # --- time, and the end ---

    def pass_time(self, seconds: float) -> None:
        """Time passes for all."""
        self.now += seconds
        for participant in self.participants.values():
            participant.apply(participant.table.tick(self.now))

    def drain(self) -> None:
        """Let everything that is in flight arrive."""
        moved = True
        while moved:
            moved = False
            for name, participant in self.participants.items():
                while participant.transmit() or self.route(name) or participant.deliver():
                    moved = True

    def settle(self) -> None:
        """Bring everybody back and let everything end; then check what must hold."""
        for name in self.names:
            self.connect(name)
        self.drain()
        self._check_ends_arrived()
        for _ in range(3):
            while any(participant.handlers for participant in self.participants.values()):
                for participant in self.participants.values():
                    for key in list(participant.handlers):
                        participant.end(key)
                self.drain()
            self.pass_time(LONG)
            self.drain()
        self._check_the_end()

    def _check_the_end(self) -> None:
        for participant in self.participants.values():
            assert participant.waiting() == [], "somebody waits for ever"
            assert participant.table.waiting == 0
            assert participant.handlers == {}, "a handler was left running"
            assert (participant.table.running, participant.table.queued) == (0, 0)
            assert participant.table.next_deadline() is None, "a timer was left"
        self._check_answers()
        self._check_taken()
        for part in (len(self.log) // 3, len(self.log) // 2, len(self.log)):
            check_audit(self.log[:part], states(self.log[:part], numbered=True))
        if self.lossless:
            self._check_ledgers()

    def _check_ends_arrived(self) -> None:
        """Handlers at work on what was given up have been cancelled, once all are back."""
        for participant in self.participants.values():
            for key in participant.waiting():
                fulfills = participant.fulfills.get(key.id)
                if fulfills is not None:
                    record = participant.table.proposal_store.get(fulfills, self.now)
                    assert record is None or record.state is not ProposalState.WITHDRAWN, (
                        "a fulfillment of what was withdrawn was not cancelled"
                    )
            for key, handler in participant.handlers.items():
                if key.side == "in" and not handler.cancelled:
                    assert not self._was_given_up(key, handler), (
                        "a handler works on what its sender gave up"
                    )

    def _was_given_up(self, key: Key, handler: Handler) -> bool:
        sender = self.participants[key.sender]
        own = Key("out", key.sender, key.id)
        ending = sender.endings.get(own)  # what was begun beside it, nobody here waits for
        if ending is None or isinstance(ending, Responded | Fulfillment | GatewayRefused):
            return False
        if self.now - sender.ended_at[own] >= REMEMBERED:
            return False
        # What another process ended is ended no second time (PROTOCOL 5), also where that is lost.
        if key.id in self.ends_beside.values() and not self.lossless:
            return False
        # A response that the gateway ordered before the withdraw decides otherwise, and what the
        # participant rejected is settled there: its handler may put things in order.
        record = handler.record
        return record is None or not (record.refused or record.state is ProposalState.FULFILLED)

    def _check_answers(self) -> None:
        answers: dict[tuple[str, str, str], set[str]] = {}
        ran: dict[tuple[str, str], set[str]] = {}
        proposal_of = {
            envelope.id: envelope.correlation[0]
            for envelope in self.log
            if envelope.kind == kinds.MCP_REQUEST
            and envelope.correlation
            and not payloads.read_call(envelope.payload).is_notification
        }
        for envelope in self.log:
            if envelope.kind == kinds.MCP_RESPONSE:
                request = envelope.correlation[0]
                said = self.participants[envelope.sender].copied.get(envelope.id, envelope.id)
                answers.setdefault((envelope.sender, envelope.to[0], request), set()).add(said)
                data = payloads.as_object(envelope.payload_object.get("error")).get("data")
                proposal = proposal_of.get(request)
                blind = request in self.participants[envelope.sender].blind
                if proposal is not None and data is None and not blind:
                    ran.setdefault((envelope.sender, proposal), set()).add(said)
        for (by, requester, request), ids in answers.items():
            times = self.participants[by].asked[requester, request].times
            assert len(ids) <= times, "a request was answered twice"
        assert all(len(ids) == 1 for ids in ran.values()), "a proposal was carried out twice"

    def _check_taken(self) -> None:
        """A gateway that resumes has taken everything once, and none of it under two ids."""
        if not self.resumes:
            return
        for participant in self.participants.values():
            assert not participant.unaccepted, "what was said has not come back"
        if self.lossless:
            names = [(envelope.sender, envelope.id) for envelope in self.log]
            assert len(set(names)) == len(names), "something was taken twice"
            taken = {name for _, name in names}
            for participant in self.participants.values():
                assert participant.owed <= taken, "something that was said is lost"
            for participant in self.participants.values():
                assert not participant.copied, "something was said again that nobody missed"

    def _check_ledgers(self) -> None:
        """With nothing lost, each proposal store says what the gateway ordered."""
        expected = states(self.log, numbered=False)
        for participant in self.participants.values():
            own = participant.table.proposal_store.records(self.now)
            own = [each for each in own if each.key.proposer == participant.name]
            check_own(self.log, own, crossing=self.ends_beside)
            for record in participant.table.proposal_store.records(self.now):
                state = expected.get(record.key)
                is_own = record.key.proposer == participant.name
                # Its own record says why a wait ended where the order has a withdraw; others
                # read there that it followed a rejection (PROTOCOL 4.5).
                ended_so = ("rejected", "expired") if is_own else ("rejected",)
                if record.state in ended_so and (is_own or state == "withdrawn"):
                    continue
                if not is_own or state is not None:
                    assert record.state == state, (participant.name, record.key)


def states(log: list[Envelope], *, numbered: bool) -> dict[ProposalKey, str]:
    """The end of each proposal, read from the gateway's order alone (PROTOCOL 4.2).

    Where it is ``numbered``, as in a journal, a proposal that is there again was made again.
    """
    found: dict[ProposalKey, str] = {}
    by_id: dict[str, ProposalKey] = {}
    requests: dict[str, tuple[ProposalKey, Envelope]] = {}
    live: dict[ProposalKey, set[str]] = {}
    for envelope in log:
        named = envelope.correlation[0] if envelope.correlation else ""
        if envelope.kind == kinds.MCP_PROPOSAL:
            key = by_id[envelope.id] = ProposalKey(envelope.sender, envelope.id)
            if numbered and key in found:
                requests = {name: (of, said) for name, (of, said) in requests.items() if of != key}
                live.pop(key, None)
                found[key] = "pending"
            found.setdefault(key, "pending")
        elif envelope.kind == kinds.MCP_WITHDRAW:
            key = ProposalKey(envelope.sender, named)
            if found.get(key) in ("pending", "in_progress"):
                found[key] = "withdrawn"
        elif envelope.kind == kinds.MCP_REQUEST:
            call = payloads.read_call(envelope.payload)
            if call.method == kinds.CANCELLED and named in requests:
                key, _ = requests[named]
                live[key].discard(named)
                if found[key] == "in_progress" and not live[key]:
                    found[key] = "pending"
            elif not call.is_notification and named in by_id and envelope.id not in requests:
                key = by_id[named]
                if envelope.sender != key.proposer:
                    requests[envelope.id] = key, envelope
                    live.setdefault(key, set()).add(envelope.id)
                    if found[key] == "pending":
                        found[key] = "in_progress"
        elif envelope.kind == kinds.MCP_RESPONSE and named in requests:
            key, request = requests[named]
            if envelope.sender not in request.to:
                continue
            error = envelope.payload_object.get("error")
            refused = payloads.as_object(payloads.as_object(error).get("data")).get("reason")
            was_live = named in live[key]
            live[key].discard(named)
            if refused == "refused" or (error is not None and not was_live):
                if found[key] == "in_progress" and not live[key]:
                    found[key] = "pending"
            elif found[key] in ("pending", "in_progress"):
                found[key] = "fulfilled"
    return found

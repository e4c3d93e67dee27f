"""A real space whose journal commits when it is told to, and participants who lose connections.

Everything that can go wrong between what is decided and what is read goes wrong here: connections
break with frames on both ways, the process is killed with envelopes that are not committed, old
ones are forgotten while somebody reads them, and capabilities come and go. Whoever comes back reads
what it missed and sends again what it does not know to be accepted (PROTOCOL 6).
"""

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Any

from tests.properties.late_journal import File, LateJournal
from tests.spaces import (
    Discard,
    Entry,
    FrameFormat,
    Journal,
    Place,
    Refusal,
    SpaceServer,
    space_server,
)

GATEWAY = "system:gateway"

KINDS = ("chat", "mcp.request", "mcp.proposal")
"""Capabilities that are granted here and taken away; everybody has them in the beginning."""

ADMIN: list[dict[str, Any]] = [{"kind": "*"}]
MEMBER = [{"kind": kind.replace(".", "/")} for kind in KINDS]

MANY_ROUNDS = 1_000
QUIET_ROUNDS = 50
"""After which the last page has come to everybody, too."""

_OFTEN = {
    "kill": 1,
    "forget": 1,
    "cut": 3,
    "commit": 40,
    "answer": 20,
    "connect": 20,
    "send": 60,
    "receive": 60,
    "talk": 60,
    "post": 20,
}

_FOR_ONE = frozenset({"system.welcome", "system.error"})


class Seat:
    """A connection at the gateway, with what is on its way to its reader."""

    def __init__(self, participant: str, last_seen: int | None, dialect: str) -> None:
        self.participant = participant
        self.last_seen = last_seen
        self.place = Place.ANSWERING
        self.form = FrameFormat(dialect, numbered=True)
        self.wire: deque[bytes] = deque()
        self.closed: int | None = None
        self._then: Callable[[], None] | None = None

    def deliver(self, packed: bytes) -> None:
        if self.closed is None:
            self.wire.append(packed)

    def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = code

    def ready(self, then: Callable[[], None]) -> None:
        self._then = then

    def go_on(self) -> None:
        """Tell that what was delivered is on its way."""
        then, self._then = self._then, None
        if then is not None and self.closed is None:
            then()


class Client:
    """A participant that resumes, and remembers what it read."""

    def __init__(self, name: str, dialect: str) -> None:
        self.name = name
        self.dialect = dialect
        self.seat: Seat | None = None
        self.uplink: deque[bytes] = deque()
        self.seq: int | None = None
        self.until: int | None = None
        self.welcomed = False
        self.read: list[tuple[int, str]] = []
        """Envelopes for everybody: number and id."""
        self.gaps = 0
        self.begun = 0
        self.unaccepted: dict[str, bytes] = {}
        self.accepted: dict[str, int] = {}
        self.refused: set[str] = set()
        self.posted: dict[str, bytes] = {}
        """Messages without the connection that have no answer yet."""
        self._ids = count(1)

    def new_id(self) -> str:
        return f"{self.name}-{next(self._ids)}"

    def say(self, kind: str, payload: object, **header: Any) -> str:
        """Say something, now or as soon as there is a connection that has read what it missed."""
        envelope_id, frame = self.write(kind, payload, **header)
        self.unaccepted[envelope_id] = frame
        if self.caught_up:
            self.uplink.append(frame)
        return envelope_id

    def write(self, kind: str, payload: object, **header: Any) -> tuple[str, bytes]:
        """Something to say: its id and its frame."""
        envelope_id = self.new_id()
        said = {
            "protocol": self.dialect,
            "id": envelope_id,
            "from": self.name,
            "kind": kind,
            "payload": payload,
            **header,
        }
        return envelope_id, json.dumps(said).encode()

    def answered(self, envelope_id: str, answer: Entry | Refusal | Discard) -> None:
        """The end of a message without the connection."""
        self.posted.pop(envelope_id, None)
        if isinstance(answer, Entry):
            self._accept(envelope_id, answer.seq)
        else:
            self._refuse(envelope_id)

    def end(self, proposal: str) -> None:
        """Withdraw something, whether it is a proposal or not."""
        named = {"correlationId": proposal, "correlation_id": [proposal]}
        field = "correlationId" if self.dialect == "meup/v0.1" else "correlation_id"
        self.say("mcp.withdraw", {"reason": "other"}, **{field: named[field]})

    @property
    def caught_up(self) -> bool:
        return self.seat is not None and self.welcomed and self.until is None

    def lose(self) -> None:
        """The connection is gone, with what was on its way."""
        self.seat, self.welcomed, self.until = None, False, None
        self.uplink.clear()

    def hear(self, frame: bytes) -> None:
        """Read one frame, as an agent does."""
        said = json.loads(frame)
        kind, seq = said["kind"].replace("/", "."), said["seq"]
        if kind == "system.welcome" and not self.welcomed:
            self._welcome(said["payload"], seq)
        elif kind in _FOR_ONE:
            assert self.seq is not None
            assert seq <= self.seq or self.gaps, "what is for one alone has a number of its own"
            self.seq = max(self.seq, seq)
            if kind == "system.error" and said["payload"]["error"] != "revoked":
                correlated = said.get("correlationId", said.get("correlation_id"))
                for name in [correlated] if isinstance(correlated, str) else correlated or ():
                    self._refuse(name)
        elif self.seq is not None and seq <= self.seq:
            assert said["from"] == self.name, "something came twice"
            self._accept(said["id"], seq)
        else:
            assert self.welcomed, "something came before the welcome"
            self.seq = seq
            self.read.append((seq, said["id"]))
            if said["from"] == self.name:
                self._accept(said["id"], seq)
        if self.until is not None and self.seq is not None and self.seq >= self.until:
            self.until = None
            # What nobody has accepted is said again, in its order.
            self.uplink.extend(self.unaccepted.values())

    def _welcome(self, payload: Any, seq: int) -> None:
        self.welcomed = True
        if payload["gap"]:
            self.gaps += 1
            # Nobody knows any more what became of these.
            self.unaccepted.clear()
        if payload["gap"] or not payload["resumed"]:
            self.read.clear()
            self.begun = seq
        else:
            assert seq == self.seq, "it goes on elsewhere than it was asked to"
        self.seq, self.until = seq, payload["until"]

    def _accept(self, envelope_id: str, seq: int) -> None:
        assert envelope_id not in self.refused, "what was refused was delivered"
        assert self.accepted.setdefault(envelope_id, seq) == seq, "accepted under two numbers"
        self.unaccepted.pop(envelope_id, None)

    def _refuse(self, envelope_id: str) -> None:
        assert envelope_id not in self.accepted, "what was accepted was refused"
        self.refused.add(envelope_id)
        self.unaccepted.pop(envelope_id, None)


class Hosted:
    """A space, its file, and its participants.

    Args:
        random: What happens next.
        dialects: What the participants speak.
        forgets: The oldest envelopes are not kept for good.
    """

    def __init__(self, random: Random, dialects: tuple[str, ...], *, forgets: bool) -> None:
        self.random = random
        self.forgets = forgets
        self.now = 1_000_000
        self.file = File()
        gateway_ids = count(1)
        self._new_id = lambda: f"g{next(gateway_ids)}"
        admin = Client("admin", "meup/v0.1")
        others = [Client(f"p{n}", dialect) for n, dialect in enumerate(dialects)]
        self.clients = {each.name: each for each in (admin, *others)}
        self.journal, self.host = self._started()

    def _opened(self) -> Journal:
        return LateJournal(self.file, lambda: self.now)

    def _started(self) -> tuple[Journal, SpaceServer]:
        journal = self._opened()
        may = {name: ADMIN if name == "admin" else MEMBER for name in self.clients}
        new_id = self._new_id
        host = space_server(may, lambda: self.now, journal=journal, new_id=new_id)
        return journal, host

    # --- what can happen ---

    def step(self) -> None:
        """Something happens."""
        self.now += self.random.choice((1, 1_000, 100_000))
        client = self.random.choice(list(self.clients.values()))
        match self.random.choices(list(_OFTEN), list(_OFTEN.values()))[0]:
            case "kill":
                self.kill()
            case "forget" if self.forgets:
                self._late.forget(self.random.randrange(len(self.file.entries) + 1))
            case "cut":
                self.cut(client)
            case "commit":
                self.commit(self.random.randrange(6))
            case "answer":
                self.answer(self.random.randrange(3))
            case "connect" if client.seat is None or self.random.random() < 0.1:
                self.connect(client)
            case "send":
                self.send(client, self.random.randrange(4))
            case "receive":
                self.receive(client, self.random.randrange(8))
            case "talk" if client.caught_up:
                self.talk(client)
            case "post":
                self.post(client, new=self.random.random() < 0.5)
            case _:
                pass

    @property
    def _late(self) -> LateJournal:
        assert isinstance(self.journal, LateJournal)
        return self.journal

    def commit(self, at_most: int) -> None:
        """The disk keeps so much of what it was given."""
        self._late.commit(at_most)

    def answer(self, at_most: int) -> None:
        """The disk hands over so many of the pages that it was asked for."""
        self._late.answer(at_most)

    def kill(self) -> None:
        """The process is gone, with what was not committed; another one starts."""
        self._late.die(self.random.randrange(6))
        for client in self.clients.values():
            client.lose()
            if self.forgets:
                client.posted.clear()  # what is forgotten is not known again
        self.journal, self.host = self._started()

    def cut(self, client: Client) -> None:
        """A connection breaks; the gateway learns of it now, or when the next one takes over."""
        seat = client.seat
        client.lose()
        if seat is not None and self.random.random() < 0.7:
            seat.close(1006, "")
            self.host.leave(seat)

    def connect(self, client: Client) -> None:
        """Dial as a member, having lost the last connection or not."""
        client.lose()
        client.seat = Seat(client.name, client.seq, client.dialect)
        self.host.join(client.seat)

    def send(self, client: Client, at_most: int) -> None:
        """Some of what a member says reaches the gateway."""
        for _ in range(min(at_most, len(client.uplink))):
            assert client.seat is not None
            self.host.receive(client.seat, client.uplink.popleft())

    def receive(self, client: Client, at_most: int) -> None:
        """Some of what is on the way to a member arrives."""
        seat = client.seat
        if seat is None:
            return
        for _ in range(min(at_most, len(seat.wire))):
            client.hear(seat.wire.popleft())
        if seat.closed is not None and not seat.wire:
            self.host.leave(seat)
            client.lose()
        elif not seat.wire:
            seat.go_on()

    def talk(self, client: Client) -> None:
        """A member sends an envelope."""
        if client.name == "admin":
            whom = self.random.choice([name for name in self.clients if name != "admin"])
            capability = {"kind": self.random.choice(KINDS).replace(".", "/")}
            kind = self.random.choice(("capability.grant", "capability.revoke"))
            client.say(kind, {"recipient": whom, "capabilities": [capability]})
        elif self.random.random() < 0.1 and client.accepted:
            named = self.random.choice(list(client.accepted))
            client.end(named)
        else:
            client.say(self.random.choice(KINDS), {"method": "tools/call"})

    def post(self, client: Client, *, new: bool) -> None:
        """A member sends without a connection, or what had no answer once more."""
        if new:
            envelope_id, frame = client.write(self.random.choice(KINDS), {"method": "tools/call"})
            client.posted[envelope_id] = frame
        elif client.posted:
            envelope_id = self.random.choice(list(client.posted))
        else:
            return
        self.host.owner.receive_as(
            client.name,
            client.posted[envelope_id],
            client.dialect,
            partial(client.answered, envelope_id),
        )

    # --- what must hold ---

    def settle(self) -> None:
        """Bring everybody back, let everything arrive, and check what must hold then."""
        quiet = 0
        for _ in range(MANY_ROUNDS):
            self.commit(1_000)
            self.answer(1_000)
            self.go_round()
            quiet = quiet + 1 if self.is_quiet else 0
            if quiet == QUIET_ROUNDS:
                break
        self.check()

    def go_round(self) -> None:
        """Everything that is on its way between the gateway and the others arrives."""
        self.now += 1_000_000
        for client in self.clients.values():
            self.receive(client, 1_000)
            if client.seat is None or client.seat.closed is not None:
                self.connect(client)
            self.send(client, 1_000)
            self.post(client, new=False)

    @property
    def is_quiet(self) -> bool:
        """True once everybody has read what it missed, and knows the end of what it said."""
        return all(
            each.caught_up and not each.unaccepted and not each.posted
            for each in self.clients.values()
        )

    def check(self) -> None:
        """Check what must hold when everything has come to an end."""
        assert self.is_quiet, "somebody waits for good"
        kept = self.file.ever
        ids = {envelope_id for _, envelope_id in kept}
        assert len(ids) == len(kept), "something was accepted twice"
        for client in self.clients.values():
            begun = client.begun
            if client.gaps and client.read:
                # What was forgotten before the first page was read belongs to the gap.
                begun = client.read[0][0] - 1
            expected = [each for each in kept if each[0] > begun]
            assert client.read == expected, f"{client.name} lacks something"
            assert not ids & client.refused, "what was refused was kept"

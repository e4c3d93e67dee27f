"""A state that is folded from the journal decides like the one that decided (PROTOCOL 9).

Random histories of everything that a space can be told. Before each frame a second state is folded
from the entries and facts so far: both say the same, and decide the same about the frame.
"""

import os
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from meup_agent.protocol.space.state import inflight
from tests.effort import scaled
from tests.protocol.space.scene import Invites
from tests.spaces import (
    Acceptance,
    Allowance,
    Answer,
    Broadcast,
    Entry,
    FrameVerdict,
    JoinState,
    Refusal,
    Repetition,
    SpaceState,
    TokenIssued,
    member_capabilities,
)
from tests.wire import Envelope, draft, encode, kinds, payloads, rfc3339

HISTORIES: Final = int(os.environ.get("MEUP_EXAMPLES") or scaled(150))

MCP: Final = {"kind": "mcp/*"}
CAPABILITIES: Final[dict[str, list[dict[str, Any]]]] = {
    "ann": [{"kind": "mcp/proposal"}, {"kind": "mcp/withdraw"}, {"kind": "chat"}],
    "bob": [MCP, {"kind": "chat"}],
    "cat": [MCP],
    "dan": [{"kind": "*"}],
    "eve": [MCP],
    "fay": [MCP],
}
DIALECTS: Final = {"eve": "mew/v0.4", "fay": "mcpx/v0.1"}
NAMES: Final = tuple(CAPABILITIES)
TOOLS: Final = ("write", "read")
IDS: Final = ("p1", "p2", "r1", "r2", "r3")
YESES: Final = ("y1", "y2")
SECONDS: Final = (1, 31, 100, 700, 4_000)
JOINS: Final = (
    JoinState(),
    JoinState(begin=1),
    JoinState(begin=1, gap=True),
    JoinState(can_resume=False),
)


class Act(NamedTuple):
    """One event: its kind, its participant, and numbers by which the rest is chosen."""

    what: str
    sender: int
    one: int
    two: int
    three: int
    is_away: bool

    @property
    def who(self) -> str:
        """The participant; mostly one that may do it."""
        likely = SENDERS.get(self.what, ())
        return (*likely, *likely, *NAMES)[self.sender % (2 * len(likely) + len(NAMES))]


def _call(act: Act) -> dict[str, Any]:
    return {"method": "tools/call", "params": {"name": TOOLS[act.three % 5 == 0]}}


def _ids(act: Act) -> tuple[str, ...]:
    return (IDS[act.one % 5], *((IDS[act.two % 5],) if act.three % 4 == 3 else ()))


def _other(act: Act) -> str:
    return NAMES[act.two % len(NAMES)]


Said = tuple[str, str, object, dict[str, Any]]  # kind, id ("": a new one), payload, header


def _propose(act: Act) -> Said:
    payload = _call(act)
    if act.two % 3:
        payload["ttl"] = 60_000 if act.two % 3 == 1 else 20_000_000
    if act.one % 3:
        payload["params"]["_meta"] = {"dev.meup/target": "cat"}
    to = {"to": (_other(act),)} if act.three % 3 == 2 else {}
    return "mcp.proposal", IDS[act.one % 2], payload, to


def _request(act: Act) -> Said:
    payload = {**_call(act), "id": act.one % 3}
    if act.two % 4 == 0:
        payload["params"]["_meta"] = {"dev.meup/proposer": "ann"}
    to = {"to": (("cat", "fay", "eve")[act.two % 3],)} if act.three % 3 else {}
    named = {"correlation": (IDS[act.two % 2],)} if act.two % 5 else {}
    if act.two % 4 == 1:
        payload["params"]["_meta"] = {"dev.meup/yes": YESES[act.one % 2]}
        to = {"to": ("cat",)}
    return "mcp.request", IDS[2 + act.one % 3], payload, {**to, **named}


def _list(act: Act) -> Said:
    payload = {"method": "tools/list", "id": 7}
    return "mcp.request", IDS[2 + act.one % 3], payload, {"to": (_other(act),)}


def _respond(act: Act) -> Said:
    refusal = {"code": -32000, "message": "no", "data": {"reason": "refused"}}
    tools = [{"name": name} for name in TOOLS[: 1 + act.three % 2]]
    payload: dict[str, Any] = (
        {"result": {}},
        {"result": {"tools": tools}},
        {"error": {"code": 1, "message": "failed"}},
        {"error": refusal},
    )[act.three % 4]
    to = {"to": (_other(act),)} if act.two % 2 else {}
    return "mcp.response", "", {**payload, "id": act.two % 3}, {"correlation": _ids(act), **to}


def _withdraw(act: Act) -> Said:
    reason = ("other", "timeout", "no_longer_needed")[act.two % 3]
    return "mcp.withdraw", "", {"reason": reason}, {"correlation": _ids(act)}


def _reject(act: Act) -> Said:
    reason = ("disagree", "busy", "incapable")[act.two % 3]
    return "mcp.reject", "", {"reason": reason}, {"correlation": _ids(act)}


def _renew(act: Act) -> Said:
    until = rfc3339(START + (1 + act.two) * 10_000 * 1_000_000)
    return "mcp.renew", "", {"expires_at": until}, {"correlation": (IDS[act.one % 2],)}


def _cancel(act: Act) -> Said:
    named = IDS[2 + act.one % 3] if act.two % 2 else act.one % 3
    payload = {"method": "notifications/cancelled", "params": {"requestId": named}}
    return "mcp.request", "", payload, {}


def _control(act: Act) -> Said:
    kind = ("pause", "resume", "shutdown", "request-status")[act.three % 4]
    payload = {"timeout_seconds": 50} if kind == "pause" and act.one % 2 else {}
    return f"participant.{kind}", "", payload, {"to": (_other(act),)}


def _status(act: Act) -> Said:
    header = {"correlation": (f"n{act.one}",), "to": (_other(act),)}
    return "participant.status", "", {"status": "idle"}, header


def _grant(act: Act) -> Said:
    granted = ({"kind": "chat"}, MCP, {"kind": "capability/grant"})[act.one % 3]
    return "capability.grant", "", {"recipient": _other(act), "capabilities": [granted]}, {}


def _revoke(act: Act) -> Said:
    revoked = ({"kind": "chat"}, MCP, {"kind": "mcp/request"})[act.one % 3]
    return "capability.revoke", "", {"recipient": _other(act), "capabilities": [revoked]}, {}


def _kick(act: Act) -> Said:
    return "space.kick", "", {"participant_id": _other(act), "reason": "enough"}, {}


def _invite(act: Act) -> Said:
    payload = {"participant_id": _other(act), "initial_capabilities": [{"kind": "chat"}]}
    return "space.invite", "", payload, {}


def _yes(act: Act) -> Said:
    terms = {"proposer": "ann", "seconds": (100, 5_000)[act.two % 2], "most": 1 + act.three % 2}
    header = {"correlation": (IDS[act.two % 2],)}
    seen = payloads.digest("tools/call", {"name": TOOLS[act.three % 5 == 0]}, "cat")
    return "yes.give", YESES[act.one % 2], {**terms, "form": "f", "digest": seen}, header


def _no(act: Act) -> Said:
    return "yes.revoke", "", {"yes_id": YESES[act.one % 2]}, {}


def _yeses(act: Act) -> Said:
    return "yes.list", "", {}, {}


def _ask(act: Act) -> Said:
    query: dict[str, Any] = {"urgent": act.two % 2 == 0}
    return "space.list-proposals", "", query, {}


WRITERS: Final[dict[str, Callable[[Act], Said]]] = {
    "propose": _propose,
    "request": _request,
    "list": _list,
    "respond": _respond,
    "withdraw": _withdraw,
    "reject": _reject,
    "renew": _renew,
    "cancel": _cancel,
    "control": _control,
    "status": _status,
    "grant": _grant,
    "revoke": _revoke,
    "kick": _kick,
    "invite": _invite,
    "ask": _ask,
    "yes": _yes,
    "no": _no,
    "yeses": _yeses,
    "chat": lambda _: ("chat", "", {"message": "hi"}, {}),
}
SENDERS: Final = {
    "propose": ("ann",),
    "withdraw": ("ann", "ann"),
    "renew": ("ann", "ann"),
    "request": ("bob", "bob", "dan", "eve"),
    "cancel": ("bob", "bob", "dan", "eve"),
    "reject": ("bob", "cat", "dan"),
    "yes": ("bob", "dan", "dan"),
    "respond": ("cat", "cat", "fay", "eve"),
    **dict.fromkeys(("grant", "revoke", "kick", "invite", "control"), ("dan", "dan", "dan")),
}
OTHERS: Final = ("join", "leave", "beside", "leave beside", "wait", "again", "expire")
OFTEN: Final = (*("propose", "request", "respond", "request", "respond", "yes"), "join", "leave")


def draw(random: Random) -> Act:
    """Any event, those of a call more often."""
    sender, one, two, three = (random.randrange(12) for _ in range(4))
    is_away = random.random() < 0.2
    return Act(random.choice((*OFTEN, *WRITERS, *OTHERS)), sender, one, two, three, is_away)


START: Final = 1_700_000_000_000_000


class SameToken(Invites):
    def new_token(self) -> str:
        return "token"


class History:
    """A state that decides, and the journal of what it decided."""

    def __init__(self, *, announces: bool, room: int) -> None:
        self.at = START
        self.entries: list[Entry] = []
        self.facts: dict[str, dict[str, Any]] = {}
        self.announces = announces
        self.room = room
        self.is_reading = False
        self.state = self._new()
        self.last: tuple[str, bytes, str] | None = None
        self.answering: set[str] = set()
        self.beside: dict[str, list[int]] = {name: [] for name in NAMES}
        self.count = 0
        self.restarted = False

    def _new(self) -> SpaceState:
        return SpaceState(
            {name: member_capabilities(each) for name, each in CAPABILITIES.items()},
            allowance=Allowance(
                messages_per_second=1e9, withdrawals_per_second=1e9, max_open_proposals=self.room
            ),
            now=self._now,
            announce_withdrawals=self.announces,
            invites=SameToken(),
            new_id=lambda: "made",
        )

    def _now(self) -> int:
        assert not self.is_reading
        return self.at

    def fold(self) -> SpaceState:
        """A state that has read the journal alone, and says the same as the one that decided."""
        state = self._new()
        self.is_reading = True  # at any time: a gateway may follow the space of another for days
        for entry in self.entries:
            state.apply(entry)
        self.is_reading = False
        state.restore(self.facts)
        state.open.pop_changes()  # those of what was read
        for name in NAMES:
            assert self._open(state, name) == self._open(self.state, name)
            if not self.restarted:
                assert self._view(state, name) == self._view(self.state, name)
        if not self.restarted:
            assert state.described() == self.state.described()
        return state

    def restart(self) -> None:
        """Go on with what is folded; no entry tells that everybody has left."""
        self.state = self.fold()
        self.restarted = True
        self.answering.clear()
        for beside in self.beside.values():
            beside.clear()
        self.state.restart(self.at)
        self._follow(self.state.end_recovered(self.at))

    # --- what happens -----------------------------------------------------------------------

    def act(self, act: Act) -> None:
        match act.what:
            case "join":
                self.join(act.who, JOINS[act.one % len(JOINS)])
            case "leave":
                self._leave(act.who)
            case "beside":
                self.join(act.who, JOINS[act.one % len(JOINS)], beside=len(self.entries) + 1)
            case "leave beside":
                if self.beside[act.who]:
                    self.state.beside_left(act.who, self.beside[act.who].pop(), self.at)
                    self._leave(act.who, is_beside=True)
            case "wait":
                self.at += SECONDS[act.one % len(SECONDS)] * 1_000_000
            case "restart":
                self.restart()
            case "expire":
                self._follow(self.state.expire(self.at))
            case "again":
                if self.last is not None:
                    self._send(*self.last, is_away=act.is_away)
            case _:
                self._say(act)

    def join(self, who: str, join_state: JoinState, *, beside: int | None = None) -> None:
        if self.state.management.is_kicked(who):
            return
        dialect = DIALECTS.get(who, "meup/v0.1")
        self.state.register_dialect(dialect)
        drafts = self.state.join(who, join_state, at=self.at, dialect=dialect, beside=beside)
        if beside is None:
            self.answering.add(who)
        else:
            self.beside[who].append(beside)
        if drafts.presence is not None:
            self._append(drafts.presence, drafts.facts)
        self._follow(drafts.then)

    def _leave(self, who: str, *, is_beside: bool = False) -> None:
        """End a connection, and with the last one the presence."""
        if who in self.answering and not is_beside:
            self.answering.discard(who)
            if self.beside[who]:
                dialect = DIALECTS.get(who, "meup/v0.1")
                self._follow(self.state.stop_answering(who, dialect, self.at))
                return
        if who in self.state and who not in self.answering and not self.beside[who]:
            self._follow(self.state.leave(who, self.at))

    def _say(self, act: Act) -> None:
        kind, named, payload, header = WRITERS[act.what](act)
        self.count += 1
        dialect = DIALECTS.get(act.who, "meup/v0.1")
        envelope = draft(
            kind.replace(".", "/") if kind != "chat" else kind,
            payload,
            id=named or f"n{self.count}",
            sender=act.who,
            ts=rfc3339(self.at),
            **header,
        )
        self._send(act.who, encode(envelope, dialect), dialect, is_away=act.is_away)

    def _send(self, who: str, frame: bytes, dialect: str, *, is_away: bool) -> None:
        """Let both states decide about a frame; what was decided is in the journal afterwards."""
        if not is_away and who not in self.state:
            return
        self.last = (who, frame, dialect)
        numbered = dialect == "meup/v0.1"
        folded = self.fold()
        decisions = [
            state.decide(
                who,
                frame,
                dialect,
                at=self.at,
                repeats=numbered or is_away,
                waits=not is_away,
                answers=is_away,
                beside=(*self.beside[who], None)[0] if self.count % 2 else None,
            )
            for state in ((self.state,) if self.restarted else (folded, self.state))
        ]
        decision = decisions[-1]
        assert shown(decisions[0]) == shown(decision)
        if isinstance(decision, Acceptance):
            seq = self._append(decision.envelope, decision.facts)
            if decision.receipt is not None:
                decision.receipt.seq = seq
            if decision.begun is not None:
                decision.begun.seq = seq
            self._follow(decision.then)

    def _follow(self, consequences: Iterable[Any]) -> None:
        for each in consequences:
            if isinstance(each, Broadcast):
                self._append(each.draft, each.facts)

    def _append(self, envelope: Envelope, facts: Iterable[Any]) -> int:
        seq = len(self.entries) + 1
        if not envelope.id:
            envelope = msgspec.structs.replace(
                envelope, id=f"g{seq}", ts=rfc3339(self.at), protocol="meup/v0.1"
            )
        kept = tuple(facts)
        self.entries.append(Entry(seq, "demo", self.at, envelope, kept))
        for key, value in kept:
            if value is None:
                self.facts.pop(key, None)
            else:
                self.facts[key] = value
        return seq

    def _open(self, state: SpaceState, name: str) -> list[tuple[object, ...]]:
        return [
            view_of(item, self.at)
            for item in state.open.of(name)
            if not item.is_proposal or item.state_at(self.at).is_pending
        ]

    def _told(self, state: SpaceState, name: str) -> object:
        """The answer to what a newcomer asks for."""
        question = draft(kinds.LIST_PROPOSALS, {"to_decide": True}, id="told", sender=name)
        return shown(state.decide(name, encode(question, "meup/v0.1"), "meup/v0.1", at=self.at))

    def _view(self, state: SpaceState, name: str) -> dict[str, Any]:
        return {
            "may": state.grants[name].patterns,
            "pause": state.control.describe_pause(name, self.at),
            "kicked": state.management.is_kicked(name),
            "tools": [state.open.tool_owners.has(name, tool) for tool in TOOLS],
            "left": state.left_after(name, START),
            "told": self._told(state, name),
            "answers": state.open.was_asked(name, IDS[2:3]),
        }


def view_of(item: Any, at: int) -> tuple[object, ...]:
    state = item.state_at(at) if item.is_proposal else item.state
    return (
        *(item.envelope.sender, item.envelope.id, item.at, state, item.addressees, item.called),
        *(dict(item.rejections), item.rejected_first, item.expires_at, item.renewals),
        *(dict(item.declined), item.whole, item.beside is not None, item.orphaned, item.refused_by),
        item.fulfills and item.fulfills.envelope.id,
        [each.envelope.id for each in item.fulfilling.values()],
        [each.envelope.id for each in item.cancelled.values()],
    )


def shown(decision: FrameVerdict) -> object:
    """A decision as it can be compared: a token is another each time."""
    if isinstance(decision, Refusal):
        return decision.code, decision.error.payload_object
    if isinstance(decision, Repetition):
        return "again", decision.receipt.seq
    if isinstance(decision, Answer):
        return decision.write(0)  # what was looked at and has expired counts in the pace alone
    if isinstance(decision, Acceptance):
        # What has expired unheard is in the changes of what is noticed first.
        then = [
            msgspec.structs.replace(each, changes=()) if isinstance(each, Broadcast) else each
            for each in decision.then
            if not isinstance(each, TokenIssued)
        ]
        return decision.envelope, decision.facts, then, decision.before
    return decision


def replay(announces: bool, room: int, acts: Iterable[Act]) -> AssertionError | None:
    """Let a history happen; the first difference, if there is one."""
    told = History(announces=announces, room=room)
    try:
        for name in NAMES:
            told.join(name, JoinState())
        for act in acts:
            told.act(act)
        told.fold()
    except AssertionError as difference:
        return difference
    return None


def shrunk(announces: bool, room: int, acts: list[Act]) -> list[Act]:
    """The acts without which there is no difference."""
    for each in reversed(acts.copy()):
        fewer = [act for act in acts if act is not each]
        if replay(announces, room, fewer) is not None:
            acts = fewer
    return acts


RESTART: Final = Act("restart", 0, 0, 0, 0, is_away=False)
WAIT_31: Final = Act("wait", 0, 1, 0, 0, is_away=False)
WAIT_700: Final = Act("wait", 0, 3, 0, 0, is_away=False)
BACK: Final = Act("join", 0, 1, 0, 0, is_away=False)  # ann resumes
FIRST: Final = Act("propose", 0, 0, 0, 0, is_away=False)
FIRST_FOR_A_MINUTE: Final = Act("propose", 0, 0, 1, 0, is_away=False)
SECOND: Final = Act("propose", 0, 1, 0, 0, is_away=False)


@pytest.mark.rule("9.fold", "3.open.ghosts")
def test_what_made_room_after_a_restart_does_not_come_back() -> None:
    told = History(announces=False, room=1)
    told.join("ann", JoinState())
    for act in (FIRST, RESTART, WAIT_31, BACK, SECOND):
        told.act(act)
    assert [item.envelope.id for item in told.state.open.of("ann")] == ["p2"]
    told.restart()
    assert [item.envelope.id for item in told.state.open.of("ann")] == ["p2"]


@pytest.mark.rule("9.fold")
def test_what_has_expired_takes_no_bytes_when_it_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "MAX_OPEN_BYTES", KEPT_BYTES)
    told = History(announces=False, room=1_000)
    told.join("ann", JoinState())
    for act in (FIRST_FOR_A_MINUTE, WAIT_700, SECOND):
        told.act(act)
    assert [item.whole for item in told.state.open.of("ann")] == [True]
    told.restart()
    assert [item.envelope.id for item in told.state.open.of("ann")] == ["p2"]


KEPT_BYTES: Final = 400
"""Room for one proposal."""


@pytest.mark.rule("9.fold")
def test_what_is_folded_decides_like_what_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = inflight.MAX_OPEN_BYTES
    for seed in range(HISTORIES):
        random = Random(seed)
        announces, room = random.choice((False, True)), random.choice((1, 2, 1_000))
        monkeypatch.setattr(inflight, "MAX_OPEN_BYTES", random.choice((KEPT_BYTES, usual, usual)))
        acts = [draw(random) for _ in range(random.randint(10, 80))]
        if random.random() < 0.5:
            acts.insert(random.randint(0, len(acts)), RESTART)
        if replay(announces, room, acts) is not None:
            few = shrunk(announces, room, acts)
            shown_acts = "\n".join(map(str, few))
            raise AssertionError(f"seed {seed}: {announces=} {room=}\n{shown_acts}") from replay(
                announces, room, few
            )

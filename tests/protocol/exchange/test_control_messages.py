"""Control messages at an agent: pauses, statuses, restarts and shutdowns (PROTOCOL 5)."""

from typing import Any

import pytest

from meup_agent import Envelope, Limits, Mode
from meup_agent.errors import Refused
from meup_agent.protocol.exchange import Leave
from meup_agent.protocol.exchange.handlers import MAX_URGENT
from meup_agent.protocol.exchange.inbound_calls import MAX_STATUS_BYTES, SHUTDOWN_SECONDS
from meup_agent.protocol.wire.payloads import PAUSED_KEY
from tests.protocol.exchange.peer import EXCHANGES, Peer, cancelled, dropped, of, said, started
from tests.protocol.exchange.test_resume_cursor import Numbered
from tests.tables import Effect, Role
from tests.wire import OURS, kinds, said_by

ALL = [{"kind": "*"}]
MINE = EXCHANGES | {Role.CHAT}


def at_ours(*roles: Role, **options: Any) -> Peer:
    """A peer at our gateway, with a boss that may do everything and another that may not."""
    me = Peer.among("boss", capabilities=ALL, gives=OURS, roles=MINE | set(roles), **options)
    me.joined("other", [{"kind": "chat"}])
    return me


def control(me: Peer, kind: str, payload: Any = None, **header: Any) -> list[Effect]:
    said: dict[str, Any] = {"sender": "boss", "id": f"c-{me._new_id()}", "to": ("me",), **header}  # pyright: ignore[reportPrivateUsage]
    return me.hears(f"participant/{kind}", {} if payload is None else payload, **said)


def answers(effects: list[Effect]) -> list[tuple[str, str]]:
    """The control messages that are to be sent, each with its word."""
    return [
        (each.kind.removeprefix("participant/"), each.payload.get("status", each.payload))
        for each in said(effects)
        if each.kind.startswith("participant/")
    ]


def busy(envelope: Envelope) -> bool:
    payload = envelope.payload
    if envelope.kind == kinds.MCP_REJECT:
        return bool(payload["reason"] == "busy")
    return bool(payload["error"]["data"]["reason"] == "busy")


@pytest.mark.rule("5.control.paused")
def test_paused_agent_begins_nothing_and_holds_what_waits() -> None:
    me = at_ours(limits=Limits(handlers=1))
    me.request("other", "r1")
    me.request("other", "r2")
    effects = control(me, "pause", {"reason": "rest"}, id="p")
    assert answers(effects) == [("status", "paused")]
    (status,) = said(effects)
    assert (status.to, status.correlation) == (("boss",), ("p",))
    # A new request and an addressed proposal get busy; what waits, or names nobody, begins when
    # it resumes.
    for effects in (me.request("other", "r3"), me.proposal("other", "p1", to=("me",))):
        (answer,) = said(effects)
        assert busy(answer)
    for effects in (me.proposal("other", "p2"), me.request("other", "r4", to=())):
        assert not said(effects)
    me.withdraw("other", "p2")
    me.hears(kinds.CHAT, {"message": "hi"}, sender="other", id="c1", to=("me",))
    (first,) = started(me.effects)
    assert not started(me.did(me.table.returned(first, {}, me.now)))
    (second,) = started(control(me, "resume"))
    (third,) = started(me.did(me.table.returned(second, {}, me.now)))
    assert (second.id, third.id) == ("r2", "r4")


@pytest.mark.rule("5.control.reconnect")
def test_pause_of_while_we_were_away_is_told_by_the_welcome_alone() -> None:
    me = Numbered(roles=MINE | {Role.PAUSE})
    me.joined("boss", ALL)
    me.returns_to_space(missed=2, others=("boss",))
    # It was lifted before we came back, or the welcome would have told us.
    assert not started(control(me, "pause"))
    assert me.table.pause is None
    me.hears(kinds.CHAT, {}, sender="boss", id="last")
    me.joined("boss", ALL)
    assert started(control(me, "pause"))


@pytest.mark.rule("5.control.paused")
def test_paused_agent_refuses_its_own_verbs_but_not_what_ends() -> None:
    me = at_ours()
    mine = me.begins_request(to=("boss",))
    control(me, "pause", {"reason": "rest"}, id="p")
    with pytest.raises(Refused, match="'boss' has paused us: rest") as refused:
        me.begins_request(to=("boss",))
    assert (refused.value.error, refused.value.details["id"]) == ("paused", "p")
    with pytest.raises(Refused):
        me.table.send(kinds.CHAT, {"message": "hi"}, now=me.now)
    assert said(me.gives_up(mine))
    assert me.table.send("chat/acknowledge", {}, now=me.now)[1]
    assert me.table.send(kinds.MCP_REQUEST, {"method": kinds.PROGRESS}, now=me.now)[1]


@pytest.mark.rule("5.control.resumes_itself")
def test_agent_resumes_itself_when_its_time_is_over() -> None:
    me = at_ours(Role.RESUME)
    control(me, "pause", {"timeout_seconds": 10}, id="p")
    assert me.table.next_deadline() == me.now + 10
    assert not answers(me.passes(9.9))
    effects = me.passes(0.1)
    assert answers(effects) == [("status", "active"), ("resume", {"reason": "timeout"})]
    assert {each.to for each in said(effects)} == {("boss",)}
    assert {each.correlation for each in said(effects)} == {("p",)}
    assert [key.id.partition(":")[0] for key in started(effects)] == ["resume"]
    assert not me.passes(100.0)


@pytest.mark.rule("5.control.resumes_itself")
@pytest.mark.parametrize(("first", "second", "until"), [(10, 5, 10), (5, 10, 10), (None, 5, None)])
def test_of_two_pauses_the_longer_holds(first: Any, second: Any, until: float | None) -> None:
    me = at_ours()
    me.joined("deputy", ALL)
    control(me, "pause", {"timeout_seconds": first})
    control(me, "pause", {"timeout_seconds": second}, sender="deputy")
    me.passes(9.0 if until else 1e6)
    assert me.table.pause is not None
    if until:
        me.passes(1.0)
        assert me.table.pause is None


@pytest.mark.rule("5.control.who")
@pytest.mark.parametrize("kind", ["pause", "resume", "clear", "restart", "shutdown", "forget"])
def test_control_by_one_who_may_not_changes_nothing(kind: str) -> None:
    me = at_ours(Role.CLEAR, Role.FORGET, Role.RESTART)
    me.request("boss", "r1")
    if kind == "resume":
        control(me, "pause")
    before = me.table.pause
    effects = control(me, kind, sender="other")
    assert dropped(effects) == ["control_not_allowed"]
    assert (me.table.pause, me.table.running) == (before, 1)
    assert not said(effects)
    # Nor does what names no participant, another one, or cannot be meant.
    for header in ({"to": ()}, {"to": ("other",)}):
        assert not control(me, kind, **header)
    assert dropped(control(me, kind, {"reason": 5})) == ["malformed_control"]


@pytest.mark.rule("5.control.who")
def test_resume_names_the_pause_that_it_ends() -> None:
    me = at_ours(Role.RESUME)
    control(me, "pause", id="p2")
    for late in (("p1",), ("p1", "p2")):
        control(me, "resume", correlation=late)
        assert me.table.pause is not None
    control(me, "resume", correlation=("p2",))
    assert me.table.pause is None


@pytest.mark.rule("5.control.reconnect", "5.control.onlooker")
@pytest.mark.parametrize("mode", Mode)
def test_welcome_tells_of_the_pause_but_not_to_onlookers(mode: Mode) -> None:
    """They would never learn that the pause has ended: what tells that is for the agent."""
    me = at_ours(mode=mode)
    control(me, "pause", {"timeout_seconds": 60}, id="p")
    me.did(me.table.connection_lost(me.now))
    paused = {"id": "p", "by": "boss", "reason": "", "seconds_left": 5.0}
    endless = {**paused, "seconds_left": 10**400}  # no float holds it
    for told in ({PAUSED_KEY: paused}, {PAUSED_KEY: endless}, {}, {PAUSED_KEY: paused}):
        you = {"id": "me", "capabilities": ALL, **told}
        me.system(kinds.SYSTEM_WELCOME, {"you": you, "participants": [], **said_by(OURS)})
        assert (me.table.pause is not None) is bool(told and mode is Mode.PARTICIPATING)


@pytest.mark.rule("5.control.reconnect")
def test_reconnect_lifts_no_pause_where_the_gateway_does_not_tell() -> None:
    me = Peer.among("boss", capabilities=ALL, dialect="mew/v0.4")
    control(me, "pause", {"timeout_seconds": 60})
    me.did(me.table.connection_lost(me.now))
    me.welcomed("boss", capabilities=ALL)
    assert me.table.pause is not None
    me.passes(60.0)
    assert me.table.pause is None


@pytest.mark.rule("5.control.status")
def test_status_is_told_at_once_whatever_runs() -> None:
    me = at_ours(limits=Limits(handlers=1, queued=1))
    for each in ("r1", "r2"):
        me.request("other", each)
    me.begins_request(to=("boss",))
    me.now += 1.5
    (status,) = said(control(me, "request-status"))
    assert status.payload == {
        "messages_in_context": 0,
        "handlers": 1,
        "queued": 1,
        "waiting": 1,
        "status": "active",
        "uptime_seconds": 1.5,
    }
    control(me, "pause", {"reason": "rest"})
    (status,) = said(control(me, "request-status", {"fields": ["paused_by"]}, to=()))
    expected = {"messages_in_context": 0, "paused_by": "boss", "status": "paused"}
    assert status.payload == expected


@pytest.mark.rule("5.control.status")
@pytest.mark.parametrize(
    ("returned", "added"),
    [
        ({"tokens": 12, "messages_in_context": 4}, {"tokens": 12, "messages_in_context": 4}),
        ({"status": "mine"}, {}),
        (None, {}),
        ({"a": object()}, {}),
        ({"a": float("nan")}, {}),
        ({"a": "x" * MAX_STATUS_BYTES}, {}),
        ([1], {}),
    ],
)
def test_author_adds_to_the_status(returned: object, added: dict[str, Any]) -> None:
    me = at_ours(Role.STATUS_REQUEST)
    control(me, "pause")
    (key,) = started(control(me, "request-status", id="s"))
    (status,) = said(me.did(me.table.returned(key, returned, me.now)))
    told = status.payload
    assert told["status"] == "paused"
    assert {name: told.get(name) for name in added} == added
    assert status.correlation == ("s",)
    assert "a" not in told
    # Later statuses repeat it, and one that fails tells what is known.
    (key,) = started(control(me, "request-status"))
    (status,) = said(me.did(me.table.raised(key, 1, "it failed", None, me.now)))
    assert {name: status.payload.get(name) for name in added} == added


@pytest.mark.rule("5.control.status")
def test_urgent_handlers_are_bounded() -> None:
    me = at_ours(Role.STATUS_REQUEST)
    for _ in range(MAX_URGENT):
        assert started(control(me, "request-status"))
    effects = control(me, "request-status")
    assert not started(effects)
    assert answers(effects) == [("status", "active")]


@pytest.mark.rule("5.control.memory")
@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize(
    ("kind", "role", "word"),
    [
        ("forget", Role.FORGET, "forgotten"),
        ("clear", Role.CLEAR, "cleared"),
        ("restart", Role.RESTART, "restarted"),
    ],
)
def test_memory_is_dropped_and_the_status_told(
    kind: str, role: Role, word: str, handled: bool
) -> None:
    me = at_ours(*([role] if handled else []))
    effects = control(me, kind, id="m")
    if handled:
        assert not answers(effects)
        (key,) = started(effects)
        effects = me.did(me.table.returned(key, None, me.now))
    assert answers(effects) == [("status", word)]
    assert said(effects)[0].correlation == ("m",)


@pytest.mark.rule("5.control.memory")
def test_compaction_is_told_as_captured() -> None:
    me = at_ours()
    effects = control(me, "compact", id="m")
    assert answers(effects) == [("compact-done", "skipped"), ("status", "compacted")]
    assert said(effects)[0].payload == {"skipped": True, "status": "skipped"}
    me = at_ours(Role.COMPACT)
    effects = control(me, "compact", {"target_tokens": 16000})
    assert answers(effects) == [("status", "compacting")]
    (key,) = started(effects)
    effects = me.did(me.table.returned(key, {"freed_tokens": 2048}, me.now))
    assert answers(effects) == [("compact-done", "compacted"), ("status", "compacted")]
    assert said(effects)[0].payload == {"status": "compacted", "freed_tokens": 2048}


@pytest.mark.rule("5.control.restart")
def test_restart_ends_what_runs_and_waits() -> None:
    me = at_ours(limits=Limits(handlers=1))
    for each in ("r1", "r2"):
        me.request("other", each)
    mine = me.begins_request(to=("boss",))
    effects = control(me, "restart", {"reason": "stuck"})
    ((key, cause),) = cancelled(effects).items()
    assert (key.id, cause.by, cause.text) == ("r1", "boss", "stuck")
    answered = {each.correlation[0]: each for each in said(effects, kinds.MCP_RESPONSE)}
    assert answered.keys() == {"r1", "r2"}
    assert answered["r1"].payload["error"]["message"] == "cancelled: stuck"
    assert not me.is_waiting(mine)
    assert [word for _, word in answers(effects)] == ["restarted"]
    # It takes new work as before.
    me.did(me.table.raised(key, 1, "cancelled", None, me.now))
    assert started(me.request("other", "r3"))


@pytest.mark.rule("5.control.shutdown")
def test_shutdown_drains_and_leaves() -> None:
    me = at_ours(Role.SHUTDOWN, limits=Limits(handlers=1))
    for each in ("r1", "r2"):
        me.request("other", each)
    (running,) = started(me.effects)
    effects = control(me, "shutdown", {"reason": "enough"}, id="s")
    assert answers(effects) == [("status", "shutting_down")]
    (waited,) = said(effects, kinds.MCP_RESPONSE)
    assert busy(waited)
    (last,) = started(effects)
    assert busy(said(me.request("other", "r3"))[0])
    assert not of(me.did(me.table.returned(running, {}, me.now)), Leave)
    assert not control(me, "shutdown")
    (leave,) = of(me.did(me.table.returned(last, None, me.now)), Leave)
    assert leave == Leave("boss", "enough", "s")


@pytest.mark.rule("5.control.shutdown")
def test_shutdown_cancels_what_does_not_end() -> None:
    me = at_ours()
    me.request("other", "r1")
    (running,) = started(me.effects)
    control(me, "shutdown")
    effects = me.passes(SHUTDOWN_SECONDS)
    assert cancelled(effects).keys() == {running}
    assert of(me.did(me.table.raised(running, 1, "cancelled", None, me.now)), Leave)
    idle = at_ours()
    assert of(control(idle, "shutdown"), Leave)


@pytest.mark.rule("5.control.onlooker")
@pytest.mark.parametrize("mode", [Mode.BESIDE, Mode.OBSERVING])
def test_onlookers_obey_and_answer_nothing(mode: Mode) -> None:
    me = at_ours(mode=mode)
    for kind in ("pause", "restart", "shutdown", "request-status"):
        assert not control(me, kind)
    assert me.table.pause is None


@pytest.mark.rule("5.control.status")
def test_statuses_of_others_are_told() -> None:
    me = at_ours(Role.STATUS, Role.COMPACT_DONE)
    effects = control(me, "status", {"status": "active", "tokens": 5}, sender="other", to=())
    effects += control(me, "compact-done", {"skipped": True}, sender="other")
    roles = [key.id.partition(":")[0] for key in started(effects)]
    assert roles == ["status", "compact_done"]

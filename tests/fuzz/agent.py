"""An agent's side: whatever its gateway and the others send, its exchanges stay in order.

A line begins with the dialect of the rest of it (``m`` ``d`` ``s`` ``w``, as in the target
*space*), or is a step of the agent's own: ``T 30`` time passes, ``X`` the connection is lost, ``W``
it is welcomed again, ``F s1 data`` a frame of a stream comes, ``E`` its handlers end, ``G`` it
gives up what it began, ``B`` it begins more.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from meup_agent.causes import Cause, Reason
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.exchange import ProposalKey, Role, Send, Start, Wake
from meup_agent.protocol.wire.envelope import draft
from tests.fuzz.frames import EXAMPLES
from tests.fuzz.logs import checked_log
from tests.protocol.exchange.peer import Peer, of

NAME = "agent"

DIALECTS = {b"m": "mcpx/v0.1", b"d": "meup/v0.1", b"s": "meup/v0.2", b"w": "mew/v0.4"}

FROM_GATEWAY = [
    b'd {"protocol":"meup/v0.1","id":"x1","from":"system:gateway","kind":"system.presence",'
    b'"payload":{"event":"join","participant":{"id":"dots","capabilities":[{"kind":"mcp/*"}]}}}',
    b'd {"protocol":"meup/v0.1","id":"x2","from":"system:gateway","kind":"system.error",'
    b'"to":["me"],"correlationId":"me-2","payload":{"error":"revoked","message":"gone"}}',
    b'd {"protocol":"meup/v0.1","id":"x3","from":"system:gateway","kind":"system.welcome","seq":7,'
    b'"payload":{"you":{"id":"me","capabilities":[]},"participants":[],"resumed":true,"until":9,'
    b'"gap":false}}',
]

STREAM = {"stream_id": "s1", "owner": "alice", "authorized_writers": ["alice"]}


def from_gateway(kind: str, payload: dict[str, Any], **more: Any) -> bytes:
    """A line in which the gateway tells of a stream."""
    envelope = draft(kind, payload, id=f"y-{kind}", sender="system:gateway", **more)
    return b"w " + encode(envelope, "mew/v0.4")


SEEDS = [
    b"\n".join([who + b" " + each for each in EXAMPLES[dialect]] + [b"T 31", b"E"])
    for who, dialect in DIALECTS.items()
] + [
    b"\n".join(
        [
            from_gateway("stream/open", STREAM, to=("alice",), correlation=("r",)),
            *[b"F s1 data", b"F s2 data", b"F s1 ", b"E", b"F s1 more"],
            from_gateway("stream/lost", {"stream_id": "s1", "frames": 3, "bytes": 30}),
            from_gateway("stream/ownership-transferred", STREAM | {"owner": "me"}),
            *[b"X", b"F s1 lost", b"W", b"F s1 data"],
            from_gateway("stream/close", {"stream_id": "s1", "reason": "complete"}),
            *[b"F s1 late", b"T 40", b"E"],
        ]
    ),
    b"\n".join([*FROM_GATEWAY, b"X", b"W", b"B", b"T 100", b"G"]),
    b'd {"protocol":"meup/v0.1","id":"a2","from":"alice","kind":"mcp.request","to":["me"],'
    b'"payload":{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x","_meta":{'
    b'"progressToken":1,"dev.meup/cause":[{"by":"a","id":"b","reason":"c","text":"d"}],"dev.meup/expires_at":'
    b'"2026-01-01T00:00:00Z"}}}}\nE\nX\nW',
]

MAX_STEPS = 60


def busy() -> Peer:
    """A participant with something open of every sort."""
    me = Peer.among(
        "alice", "bob", "mew", roles=set(Role), wall_clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    me.request("alice", "a1", rpc_id=1)
    me.proposal("alice", "p1", to=("me",))
    me.begins_request(fulfills=ProposalKey("alice", "p1"))
    begin(me)
    return me


def begin(me: Peer) -> None:
    """Something of its own."""
    me.begins_request(deadline=5.0)
    me.begins_proposal(to=("bob",))
    me.begins_proposal(sent=False)


def run(data: bytes) -> None:
    """Play the lines of an input."""
    with checked_log():
        me = busy()
        for line in data.split(b"\n")[:MAX_STEPS]:
            step(me, line)
        me.loses_connection()
        me.welcomed("alice")
        me.shuts_down()
        me.ends_grace()
        me.passes(10_000)
        woken = [wake.key for wake in of(me.effects, Wake)]
        assert len(woken) == len(set(woken)), "somebody is told of two ends"
        for send in of(me.effects, Send):
            assert not send.draft.kind.startswith("system/")


def step(me: Peer, line: bytes) -> None:
    """One line."""
    first, rest = line[:1], line[2:]
    if first in DIALECTS:
        with suppress(InvalidEnvelope):
            envelope = decode(rest, DIALECTS[first])
            me.did(me.table.receive(envelope, me.now))
    elif first == b"F":
        stream, _, frame = rest.partition(b" ")
        me.did(me.table.receive_frame(stream.decode(errors="replace"), frame, me.now))
    elif first == b"T":
        me.passes(int(rest) if rest.isdigit() and len(rest) < 5 else 1)
    elif first in STEPS:
        STEPS[first](me)


def end_handlers(me: Peer) -> None:
    """Every handler that has begun returns."""
    for start in of(me.effects, Start):
        if start.key.side == "in" and me.table.is_open(start.key):
            me.returns(start.key)


def give_up(me: Peer) -> None:
    """No wait is left."""
    me.did(me.table.close(Cause(Reason.NO_LONGER_NEEDED, "me"), me.now))


STEPS: dict[bytes, Callable[[Peer], object]] = {
    b"X": lambda me: me.loses_connection(),
    b"W": lambda me: me.welcomed("alice", "bob"),
    b"E": end_handlers,
    b"G": give_up,
    b"B": begin,
}

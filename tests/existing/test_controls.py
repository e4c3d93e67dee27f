"""Controls of the scripted gateways, seen from plain sockets."""

import json
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.existing.gateways import MEUP_V02, MEW_V04, ExistingGateway, Heard, Version
from tests.patience import PATIENCE

TOKENS = {"a-token": "a", "b-token": "b", "c-token": "c"}
CAPABILITIES = {"a": [{"kind": "chat"}, {"kind": "mcp/*"}], "b": [{"kind": "chat"}]}


@pytest.fixture(params=[MEUP_V02, MEW_V04], ids=["meup-v0.2", "mew-v0.4"])
def gateway(request: pytest.FixtureRequest) -> Generator[ExistingGateway]:
    version: Version = request.param
    with ExistingGateway(version, tokens=TOKENS, capabilities=CAPABILITIES).in_thread() as serving:
        yield serving


@pytest.fixture
def sockets() -> Generator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def joined(
    sockets: ExitStack, gateway: ExistingGateway, name: str, token: str | None = None
) -> ClientConnection:
    # Short, since a stalled gateway never answers a close.
    socket = sockets.enter_context(
        connect(gateway.url, compression=None, close_timeout=0.2, open_timeout=PATIENCE)
    )
    join = {"type": "join", "participantId": name, "token": token or f"{name}-token"}
    socket.send(json.dumps(join))
    assert read(socket)["kind"] == "system/welcome"
    return socket


def read(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(PATIENCE))


def reads_nothing(socket: ClientConnection) -> bool:
    assert socket.ping().wait(PATIENCE)
    try:
        socket.recv(timeout=0)
    except TimeoutError:
        return True
    return False


def presence(envelope: Any) -> tuple[str, str]:
    assert envelope["kind"] == "system/presence"
    return envelope["payload"]["event"], envelope["payload"]["participant"]["id"]


def end_of(socket: ClientConnection) -> ConnectionClosed:
    while True:
        try:
            socket.recv(PATIENCE)
        except ConnectionClosed as ended:
            return ended


def test_nothing_is_sent_before_the_first_frame(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    headers = {"Authorization": "Bearer a-token"}
    socket = sockets.enter_context(
        connect(f"{gateway.url}/ws?space=demo", additional_headers=headers, open_timeout=PATIENCE)
    )
    assert reads_nothing(socket)
    assert gateway.frames == []


def test_every_frame_is_noted_with_who_sent_it(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    a = joined(sockets, gateway, "a")
    a.send('{"kind": "chat", "payload": {"text": "hello"}}')
    a.send(b"#stream-1#data")
    heard = gateway.wait_frames(lambda heard: heard.who == "a", 3)
    assert heard == gateway.frames
    assert heard[1] == Heard("a", {"kind": "chat", "payload": {"text": "hello"}}, 1)
    assert heard[2].frame == b"#stream-1#data"


def test_a_dropped_connection_ends_without_a_close_frame_and_is_noticed(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    a, b = joined(sockets, gateway, "a"), joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    gateway.drop("b")
    assert end_of(b).rcvd is None
    assert presence(read(a)) == ("leave", "b")
    assert gateway.members() == ["a"]


def test_the_held_end_of_an_old_connection_evicts_the_new_one(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    """The race of PROTOCOL 2, in the order of events that loses."""
    a, old = joined(sockets, gateway, "a"), joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    gateway.hold_close("b")
    old.close()
    new = joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    a.send('{"kind": "chat", "payload": {"text": "still in"}}')
    assert read(new)["payload"]["text"] == read(a)["payload"]["text"] == "still in"
    gateway.release_close("b")
    assert presence(read(a)) == ("leave", "b")
    assert gateway.members() == ["a"]
    new.send('{"id": "1", "kind": "chat", "payload": {"text": "me?"}}')
    assert read(new)["payload"]["your_capabilities"] == []
    a.send('{"kind": "chat", "payload": {"text": "gone"}}')
    assert read(a)["payload"]["text"] == "gone"
    assert reads_nothing(new)


@pytest.mark.parametrize("old_ends_first", [True, False])
def test_the_held_end_can_be_noticed_right_after_the_next_join(
    gateway: ExistingGateway, sockets: ExitStack, old_ends_first: bool
) -> None:
    a, old = joined(sockets, gateway, "a"), joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    gateway.hold_close("b", release_on_join=True)
    if old_ends_first:
        old.close()
    joined(sockets, gateway, "b")
    old.close()
    assert [presence(read(a)) for _ in range(2)] == [("join", "b"), ("leave", "b")]
    assert gateway.members() == ["a"]
    joined(sockets, gateway, "b")
    assert gateway.members() == ["a", "b"]


def test_a_stalled_connection_is_open_and_silent_until_its_end_is_released(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    a, b = joined(sockets, gateway, "a"), joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    gateway.stall("b")
    pong = b.ping()
    b.send('{"kind": "chat", "payload": {"text": "unheard"}}')
    a.send('{"kind": "chat", "payload": {"text": "unread"}}')
    assert read(a)["payload"]["text"] == "unread"
    gateway.say("b", {"kind": "chat", "payload": {"text": "unread, too"}})
    new = joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    with pytest.raises(TimeoutError):
        b.recv(timeout=0)
    assert not pong.is_set()
    assert [heard for heard in gateway.frames if heard.connection == 2][1:] == []
    gateway.release_close("b")
    assert presence(read(a)) == ("leave", "b")
    assert end_of(b).rcvd is None
    assert reads_nothing(new)


def test_a_restart_forgets_everything_but_the_configuration_and_the_port(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    a, b = joined(sockets, gateway, "a"), joined(sockets, gateway, "b")
    gateway.grant("b", [{"kind": "mcp/proposal"}])
    gateway.hold_close("b")
    url = gateway.url
    gateway.restart()
    assert end_of(a).rcvd is None
    assert end_of(b).rcvd is None
    assert gateway.members() == []
    assert gateway.url == url
    b = joined(sockets, gateway, "b")
    assert gateway.members() == ["b"]
    gateway.wait_joined("b", 2)
    b.send('{"id": "1", "kind": "mcp/proposal", "payload": {}}')
    assert read(b)["payload"]["error"] == "capability_violation"


def test_the_end_of_the_gateway_sends_no_close_frame(sockets: ExitStack) -> None:
    with ExistingGateway(MEW_V04, tokens=TOKENS).in_thread() as serving:
        a = joined(sockets, serving, "a")
    assert end_of(a).rcvd is None


def test_a_grant_brings_a_second_welcome_or_the_gateways_own_acknowledgement(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    a, b = joined(sockets, gateway, "a"), joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    grant_id = gateway.grant("b", [{"kind": "mcp/proposal"}])
    told, relayed = read(b), read(b)
    assert told["from"] == "system:gateway"
    if gateway.version is MEW_V04:
        assert told["kind"] == "system/welcome"
        assert {"kind": "mcp/proposal"} in told["payload"]["you"]["capabilities"]
        assert read(a) == relayed
    else:
        assert told["kind"] == "capability/grant-ack"
    assert (relayed["kind"], relayed["id"]) == ("capability/grant", grant_id)
    b.send('{"id": "1", "kind": "mcp/proposal", "payload": {}}')
    assert read(b)["id"] == "1"
    gateway.revoke("b", grant_id)
    assert read(b)["kind"] == "capability/revoke"
    b.send('{"id": "2", "kind": "mcp/proposal", "payload": {}}')
    assert read(b)["payload"]["error"] == "capability_violation"


def test_a_grant_of_mew_v04_goes_to_whoever_showed_the_recipients_token(sockets: ExitStack) -> None:
    with ExistingGateway(MEW_V04, tokens=TOKENS).in_thread() as serving:
        other = joined(sockets, serving, "other", "b-token")
        serving.grant("b", [{"kind": "mcp/proposal"}])
        assert read(other)["payload"]["you"]["id"] == "other"


def test_what_is_forged_or_said_arrives_as_it_is(
    gateway: ExistingGateway, sockets: ExitStack
) -> None:
    a, b = joined(sockets, gateway, "a"), joined(sockets, gateway, "b")
    assert presence(read(a)) == ("join", "b")
    forged = {"kind": "system/welcome", "from": "b", "to": ["a"], "odd": [1]}
    gateway.forge(forged)
    assert read(a) == read(b) == forged
    gateway.say("b", b"#stream-1#\x00")
    gateway.say("b", "no JSON")
    assert b.recv(PATIENCE) == b"#stream-1#\x00"
    assert b.recv(PATIENCE) == "no JSON"
    assert reads_nothing(a)

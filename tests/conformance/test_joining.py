"""The ways in which participants of existing spaces join, at a gateway with one space."""

from collections.abc import Generator

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance.conftest import PARTICIPANTS
from tests.conformance.wire import V02, V04, Json, Site, Wire, serving, serving_site

HEADER = {"Authorization": "Bearer alice-token"}
OWN: Json = {"participantId": "alice", "space": "demo", "token": "alice-token"}


@pytest.fixture
def site(dialect: str) -> Generator[Site]:
    with serving_site(PARTICIPANTS, dialect) as opened:
        yield opened


def envelope(dialect: str, payload: Json, **header: object) -> Json:
    """A join as an envelope, as terminals of the reference send it."""
    return {"protocol": dialect, "id": "j1", "kind": "system/join", **header, "payload": payload}


def may_speak(alice: Wire, dialect: str) -> None:
    welcome = alice.hear("system/welcome")
    assert (welcome["protocol"], welcome["payload"]["you"]["id"]) == (dialect, "alice")
    alice.until("system/presence")
    alice.send("chat", {"text": "hi"})
    assert alice.hear("chat")["from"] == "alice"


@pytest.mark.rule("3.join.header_alone")
@pytest.mark.parametrize("path", ["/", "/ws", "/?space=demo"])
def test_a_header_alone_joins(site: Site, path: str) -> None:
    with site.by_frame("alice", path, headers=HEADER) as alice:
        may_speak(alice, site.dialect)


@pytest.mark.rule("3.join.header_alone", "3.join.envelope")
@pytest.mark.parametrize("headers", [None, HEADER])
@pytest.mark.parametrize(
    "left_out", [(), ("space",), ("participantId",), ("space", "participantId")]
)
@pytest.mark.parametrize("as_envelope", [False, True])
def test_frames_and_envelopes_join(
    site: Site, headers: dict[str, str] | None, left_out: tuple[str, ...], as_envelope: bool
) -> None:
    """With a token in the header and none in the frame, or the other way, or in both."""
    left_out += ("token",) if headers else ()
    claims = {key: value for key, value in OWN.items() if key not in left_out}
    with site.by_frame("alice", headers=headers) as alice:
        alice.write(envelope(site.dialect, claims) if as_envelope else {"type": "join", **claims})
        may_speak(alice, site.dialect)


@pytest.mark.rule("3.join.envelope")
def test_the_name_may_be_called_otherwise_and_the_envelope_says_the_protocol(site: Site) -> None:
    other = V02 if site.dialect == V04 else V04
    claims = {"participant": "alice", "token": "alice-token", "capabilities": [{"kind": "*"}]}
    with site.by_frame("alice", dialect=other) as alice:
        alice.write(envelope(other, claims, **{"from": "alice"}))
        welcome = alice.hear("system/welcome")
        assert welcome["protocol"] == other
        assert {"kind": "*"} not in welcome["payload"]["you"]["capabilities"]


@pytest.mark.rule("3.join.envelope")
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (None, {"payload": {**OWN, "participantId": "bob"}}),
        (None, {"payload": {**OWN, "participant": "bob"}}),
        (None, {"payload": OWN, "from": "bob"}),
        (None, {"payload": {**OWN, "token": "wrong"}}),
        (None, {"payload": {"participantId": "alice"}}),
        (HEADER, {"payload": {**OWN, "participantId": "bob"}}),
        (HEADER, {"payload": {"participantId": "bob"}}),
        (HEADER, {"payload": {**OWN, "token": "bob-token", "participantId": "bob"}}),
    ],
)
def test_a_join_as_another_is_refused(
    site: Site, headers: dict[str, str] | None, said: Json
) -> None:
    with site.by_frame("alice", headers=headers) as wire:
        wire.write({"kind": "system/join", **said})
        assert wire.end() == 4401


@pytest.mark.rule("3.join.header_alone", "3.join.envelope")
@pytest.mark.parametrize("claim", [{"participantId": "bob"}, {"space": "other"}])
def test_a_join_frame_behind_a_whole_handshake_must_fit_it(site: Site, claim: Json) -> None:
    with site.join("bob") as (bob,), site.member("alice") as alice:
        alice.until("system/presence")
        alice.write({"type": "join", **claim})
        assert alice.end() == 4401
        bob.until("system/presence")


@pytest.mark.rule("3.join.header_alone")
def test_what_is_said_first_joins_by_the_header(site: Site) -> None:
    """No second passes: only a join frame, which says more, is waited for."""
    with site.by_frame("alice", headers=HEADER) as alice:
        sent = alice.send("chat", {"text": "hi"})
        alice.hear("system/welcome")
        alice.hear("system/presence")
        assert alice.hear("chat")["id"] == sent
    with site.dial(HEADER, "/") as socket:
        other = V02 if site.dialect == V04 else V04
        alice = Wire(socket, "alice", other)
        alice.write({"type": "join", "protocol": other, **OWN})
        assert alice.hear("system/welcome")["protocol"] == other


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("#stream-1#data", 4400),
        ('{"kind": "system/join", "payload": 5}', 4400),
        ('{"kind": "system/join", "token": "alice-token", "payload": {"token": "x"}}', 4400),
        ('{"kind": "system/join", "space": "a", "payload": {"space": "b"}}', 4400),
        ('{"kind": "chat", "payload": {"text": "hi"}}', 4400),
        ('{"type": "join", "space": "elsewhere", "token": "alice-token"}', 4404),
    ],
)
def test_what_joins_nobody_gets_one_clear_answer(site: Site, frame: str, code: int) -> None:
    with site.join("bob") as (bob,), site.dial(path="/") as socket:
        wire = Wire(socket, "alice", site.dialect)
        wire.write(frame)
        assert wire.end() == code
        bob.send("chat", {"text": "still here"})
        assert bob.hear("chat")["payload"]["text"] == "still here"


def test_of_several_spaces_one_must_be_named(dialect: str) -> None:
    more = {"other": {"alice": [{"kind": "chat"}]}}
    with serving(PARTICIPANTS, dialect=dialect, more=more) as gateway:
        site = Site(gateway, dialect)
        for frame in ({"type": "join", "token": "alice-token"}, envelope(dialect, OWN)):
            with site.by_frame("alice", headers=HEADER) as wire:
                wire.write(frame)
                if "type" in frame:
                    assert wire.end() == 4400
                else:
                    assert wire.hear("system/welcome")["payload"]["you"]["id"] == "alice"
        with pytest.raises(InvalidStatus):
            site.dial(HEADER, "/?space=nowhere")

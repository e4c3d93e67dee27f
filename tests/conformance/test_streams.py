"""Streams as the captures and the specification show them (section 3.10), over real sockets."""

import json
from typing import Any

import httpx
import pytest

from tests.conformance.conftest import only_v04
from tests.conformance.wire import MCPX, V01, V02, V04, Json, Site, Wire
from tests.no_tls import ALONE
from tests.patience import PATIENCE

pytestmark = only_v04

PEOPLE: dict[str, list[Json]] = {
    "admin": [{"kind": "*"}],
    "owner": [{"kind": "stream/*"}, {"kind": "chat"}],
    "writer": [{"kind": "stream/*"}],
    "observer": [{"kind": "chat"}],
}


def frame(wire: Wire) -> bytes:
    """The next message, which must be a frame of a stream, and binary."""
    data = wire.socket.recv(PATIENCE)
    assert isinstance(data, bytes), data
    return data


def opened(by: Wire, *others: Wire, **request: Any) -> str:
    """Open a stream; everybody has read so far when its id is returned."""
    asked = by.send("stream/request", {"direction": "upload", **request}, to=["gateway"])
    for wire in (by, *others):
        assert wire.hear("stream/request")["id"] == asked
        said = wire.hear("stream/open")
        assert (said["to"], said["correlation_id"]) == ([by.name], [asked])
    return str(said["payload"]["stream_id"])


def refusal(wire: Wire) -> tuple[str, str]:
    said = wire.refused()
    assert said["message"]
    return said["error"], said.get("stream_id", "")


@pytest.mark.rule("E.E12")
def test_no_member_opens_a_stream_itself_or_closes_one_that_is_not_its(site: Site) -> None:
    with site.join("writer", "owner") as (writer, owner):
        stream = opened(owner, writer)
        writer.send("stream/open", {"stream_id": "s1", "encoding": "text"}, to=["owner"])
        assert refusal(writer)[0] == "reserved_kind"
        writer.send("stream/close", {"stream_id": stream, "reason": "complete"}, to=["owner"])
        assert refusal(writer)[0] == "unauthorized"
        owner.write(f"#{stream}#on")
        assert frame(writer) == f"#{stream}#on".encode()


@pytest.mark.rule("C.W18", "C.W20", "C.W21", "E.E8", "8.open", "8.frames", "8.close")
def test_a_stream_from_its_request_to_its_end(site: Site) -> None:
    with site.join("admin", "observer") as (admin, observer):
        stream = opened(admin, observer, description="d", format="jsonl")
        for sent, kept in ((f"#{stream}#hello", b"hello"), (f"#{stream}##\0\xff", "#\0\xff")):
            data = kept if isinstance(kept, bytes) else kept.encode()
            admin.write(sent)
            admin.write(f"#{stream}#".encode() + data)
            for wire in (admin, observer):
                assert [frame(wire) for _ in range(2)] == [f"#{stream}#".encode() + data] * 2
        # A second one has its own id, and another's close ends neither.
        assert opened(admin, observer) != stream
        observer.send("stream/close", {"stream_id": stream})
        assert observer.refused()["error"] == "capability_violation"
        admin.send("stream/close", {"stream_id": stream, "reason": "complete"})
        for wire in (admin, observer):
            assert wire.hear("stream/close")["payload"]["reason"] == "complete"
        for wire, name in ((admin, stream), (observer, stream), (admin, "nope")):
            wire.write(f"#{name}#late")
            assert refusal(wire) == ("unauthorized_stream_write", name)
        # The place of a frame among envelopes is that of its sending.
        stream = opened(admin, observer)
        admin.send("chat", {"text": "before"})
        admin.write(f"#{stream}#x")
        admin.send("stream/close", {"stream_id": stream})
        assert observer.hear("chat")
        assert frame(observer) == f"#{stream}#x".encode()
        assert observer.hear("stream/close")


@pytest.mark.rule("C.W19", "8.targets")
def test_frames_go_to_the_targets_alone(site: Site) -> None:
    with site.join("owner", "writer", "observer") as (owner, writer, observer):
        owner.send("stream/request", {"target": ["writer", "nobody", "who"]})
        said = owner.refused()
        assert (said["error"], said["targets"]) == ("target_not_found", ["nobody", "who"])
        stream = opened(owner, writer, observer, target=["writer"])
        owner.write(f"#{stream}#x")
        owner.send("chat", {"text": "after"})
        assert frame(writer) == f"#{stream}#x".encode()
        for wire in (owner, writer, observer):
            wire.hear("chat")
        # Its only target is the other side of it, and closes it as well.
        writer.send("stream/close", {"stream_id": stream, "reason": "cancelled"})
        assert owner.hear("stream/close")["from"] == "writer"


@pytest.mark.rule("C.W22", "C.W23", "8.writers", "8.writer_left")
def test_writers_come_and_go(site: Site) -> None:
    with site.join("owner", "observer", "admin") as (owner, observer, admin):
        with site.member("writer") as writer:
            writer.until("system/presence")
            for wire in (owner, observer, admin):
                wire.hear("system/presence")
            stream = opened(owner, writer, observer, admin)
            right = {"stream_id": stream, "participant_id": "writer", "reason": "why"}
            for by, kind, payload, code in (
                (writer, "grant-write", right, "unauthorized"),
                (writer, "revoke-write", right, "unauthorized"),
                (writer, "transfer-ownership", {**right, "new_owner": "writer"}, "unauthorized"),
                (owner, "grant-write", {**right, "stream_id": "x"}, "stream_not_found"),
                (owner, "grant-write", {**right, "participant_id": "x"}, "participant_not_found"),
                (owner, "revoke-write", {**right, "participant_id": "owner"}, "invalid_operation"),
                (owner, "transfer-ownership", {**right, "new_owner": "x"}, "participant_not_found"),
                (owner, "grant-write", {}, "invalid_envelope"),
            ):
                by.send(f"stream/{kind}", payload)
                assert refusal(by)[0] == code
            writer.write(f"#{stream}#x")
            assert refusal(writer) == ("unauthorized_stream_write", stream)
            asked = owner.send("stream/grant-write", right)
            for wire in (owner, writer, observer, admin):
                wire.hear("stream/grant-write")
                said = wire.hear("stream/write-granted")
                assert said["correlation_id"] == [asked]
                assert said["payload"]["authorized_writers"] == ["owner", "writer"]
            writer.write(f"#{stream}#x")
            for wire in (owner, writer, observer, admin):
                assert frame(wire) == f"#{stream}#x".encode()
        # It may write no longer once it has left, and comes back without the right.
        told = {**right, "authorized_writers": ["owner"], "reason": "writer_left"}
        assert observer.until("stream/write-revoked")["payload"] == told
        owner.send("stream/transfer-ownership", {"stream_id": stream, "new_owner": "admin"})
        said = admin.until("stream/ownership-transferred")["payload"]
        assert (said["previous_owner"], said["new_owner"]) == ("owner", "admin")
        assert said["authorized_writers"] == ["admin"]
        owner.write(f"#{stream}#x")
        assert owner.refusal() == "unauthorized_stream_write"


@pytest.mark.rule("C.W5", "C.W6", "8.welcome")
def test_newcomers_are_told_of_all_streams(site: Site) -> None:
    request = {"format": "x/1", "metadata": {"fps": [60]}, "owner": "forged", "custom": None}
    with site.join("owner") as (owner,):
        stream = opened(owner, target=["owner"], **request)
        for dialect in (V04, V02, V01, MCPX):
            with site.member("observer", dialect=dialect) as late:
                welcome = late.hear_any()["payload"]
                (listed,) = welcome["active_streams"]
                assert welcome["dev.meup/streams"] == {"journaled": False}
            assert listed.pop("created")
            origin = listed.pop("dev.meup/origin")
            assert (origin["by"], origin["request"]) == ("owner", "owner-1")
            asked = {**request, "direction": "upload", "target": ["owner"]}
            opens = {"stream_id": stream, "owner": "owner", "authorized_writers": ["owner"]}
            assert listed == asked | opens


@pytest.mark.rule("8.dialects")
def test_dialects_without_streams_get_news_and_no_frame(site: Site) -> None:
    with (
        site.join("owner") as (owner,),
        site.member("writer", dialect=V01) as ours,
        site.member("observer", dialect=V02) as older,
        site.member("admin", dialect=MCPX) as oldest,
    ):
        for wire in (ours, older, oldest):
            wire.hear_any()
        while owner.hear_any()["payload"]["participant"]["id"] != "admin":
            pass
        asked = owner.send("stream/request", {"direction": "upload"})
        stream = owner.until("stream/open")["payload"]["stream_id"]
        assert ours.until("stream.open")["correlationId"] == asked
        owner.write(f"#{stream}#x")
        assert frame(ours) == frame(owner) == f"#{stream}#x".encode()
        owner.send("chat", {"text": "after"})
        for wire in (older, oldest):
            wire.until("stream/open")
            assert wire.hear_any()["kind"] == "chat"
        oldest.send("stream/request", {"direction": "upload"})
        assert oldest.refused()["error"] == "invalid_operation"
        older.write(f"#{stream}#x")
        assert older.refusal() == "invalid_json"


@pytest.mark.rule("8.bad_frames", "8.bounds")
def test_bad_frames_get_one_clear_answer_each(site: Site) -> None:
    with site.join("owner", "observer") as (owner, observer):
        stream = opened(owner, observer)
        # A megabyte of an id, none, one that is not text, and frames that look like envelopes.
        envelope = json.dumps({"kind": "system/error", "from": "system:gateway", "payload": {}})
        for raw in ("#" + "x" * (1 << 20), "##x", "#", b"#\xff#x", "#" + envelope, "#a\n#x"):
            owner.write(raw)
            assert refusal(owner) == ("invalid_stream_frame", "")
        for raw, name in ((f"#{stream}#{envelope}", stream), ("#" + "y" * 128 + "#x", "y" * 128)):
            observer.write(raw)
            assert refusal(observer) == ("unauthorized_stream_write", name)
        # More streams than a participant may have.
        for _ in range(31):
            opened(owner, observer)
        owner.send("stream/request", {"direction": "upload"})
        said = owner.refused()
        found = (said["error"], said["limit"], said["max"])
        assert found == ("limit_exceeded", "max_open_streams", 32)
        owner.send("stream/request", {"description": "x" * 5_000})
        assert owner.refused()["error"] == "too_large"
        # The space goes on.
        owner.write(f"#{stream}#x")
        assert frame(observer) == f"#{stream}#x".encode()


@pytest.mark.rule("8.bad_frames")
def test_a_frame_before_joining_ends_the_connection(site: Site) -> None:
    with site.by_frame("nobody", "/ws?space=demo", dialect=V04) as wire:
        wire.write("#stream-1#x")
        assert wire.end() == 4400


@pytest.mark.rule("8.http")
def test_streams_over_http(site: Site) -> None:
    place = site.gateway.url.replace("ws", "http", 1).removesuffix("/ws")
    url = getattr(site.gateway, "http_url", None) or place

    def post(name: str, said: Json | str) -> httpx.Response:
        kind = "text/plain" if isinstance(said, str) else "application/json"
        headers = {"Authorization": f"Bearer {name}-token", "Content-Type": kind}
        content = said if isinstance(said, str) else json.dumps(said)
        where = f"{url}/participants/{name}/messages"
        return httpx.post(where, content=content, headers=headers, **ALONE)

    def ask(name: str, kind: str, **payload: Any) -> tuple[int, Json]:
        answer = post(name, {"kind": f"stream/{kind}", "payload": payload})
        return answer.status_code, answer.json()

    with site.join("observer", "writer") as (observer, writer):
        status, body = ask("owner", "request", direction="upload")
        assert (status, body.get("status")) == (200, "accepted"), body
        stream = body["stream_id"]
        assert post("owner", f"#{stream}#x").json()["status"] == "accepted"
        for wire in (observer, writer):
            wire.until("stream/open")
            assert frame(wire) == f"#{stream}#x".encode()
        refused = post("writer", f"#{stream}#x")
        assert (refused.status_code, refused.json()["error"]) == (403, "unauthorized_stream_write")
        assert writer.until("system/error")["payload"]["stream_id"] == stream
        right = {"stream_id": stream, "participant_id": "writer"}
        for by, kind, payload, wanted in (
            ("owner", "grant-write", {"stream_id": "x"}, (404, "stream_not_found")),
            ("writer", "grant-write", {}, (403, "unauthorized")),
            ("owner", "grant-write", {"participant_id": "x"}, (404, "participant_not_found")),
            ("owner", "revoke-write", {"participant_id": "owner"}, (400, "invalid_operation")),
            ("owner", "request", {"target": ["x"]}, (404, "target_not_found")),
        ):
            status, body = ask(by, kind, **right | payload)
            assert (status, body["error"]) == wanted
        assert ask("owner", "grant-write", **right)[0] == 200
        assert post("writer", f"#{stream}#y").status_code == 200
        observer.until("stream/write-granted")
        assert frame(observer) == f"#{stream}#y".encode()
        assert post("owner", "#nothing").status_code == 400
        assert ask("owner", "close", stream_id=stream)[0] == 200
        assert observer.until("stream/close")["payload"]["stream_id"] == stream

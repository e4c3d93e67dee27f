"""A connection over HTTP: its address, what a frame ends, and a gateway that lies."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import ByteStream

from meup_agent.errors import ConfigurationError, TransportClosed
from meup_agent.transport import http
from meup_agent.transport.base import ABNORMAL
from meup_agent.transport.http import check_http_url, ends_something, open_client
from meup_agent.types import Cause
from tests.gateways import TOO_BIG, CloseInfo, Transport, http_connector
from tests.patience import PATIENCE
from tests.wire import draft, encode, kinds, payloads


def frame(kind: str, payload: object) -> bytes:
    said = draft(kind, payload, id="1", sender="me", to=("tools",), correlation=("p",))
    return encode(said, "meup/v0.1")


@pytest.mark.rule("3.pace.ends")
def test_withdraws_rejects_and_cancels_end_something() -> None:
    cancel = payloads.cancelled("p", Cause("other", by="me", id="p"))
    for kind, payload in (
        (kinds.MCP_WITHDRAW, {"reason": "other"}),
        (kinds.MCP_REJECT, {"reason": "other"}),
        (kinds.MCP_REQUEST, cancel),
    ):
        assert ends_something(frame(kind, payload))
    assert not ends_something(frame(kinds.MCP_REQUEST, payloads.request("tools/list", {}, "1")))
    assert not ends_something(frame(kinds.CHAT, {"message": "hello"}))
    assert not ends_something(json.dumps({"no": "envelope"}).encode())


@pytest.mark.parametrize(
    "url",
    ["localhost:8421", "ws://localhost:8421", "http://", "", "http://[::1", "http://here:99999"],
)
def test_an_address_that_is_none_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(ConfigurationError, match="give one such as http://localhost:8420"):
        check_http_url(url)


@pytest.mark.parametrize(("asked", "pause"), [(None, 1.0), (0.0, 0.05), (2.5, 2.5), (1e9, 10.0)])
def test_a_frame_is_sent_again_neither_at_once_nor_never(asked: float, pause: float) -> None:
    assert http.resend_pause(asked) == pause


@pytest.mark.anyio
async def test_a_token_that_no_header_can_hold_is_refused_and_not_shown() -> None:
    bad = "Bearer s\N{LATIN SMALL LETTER E WITH ACUTE}cret"
    with pytest.raises(ConfigurationError, match="Authorization") as refused:
        async with open_client("http://localhost:8421", bad):
            pass
    assert "cret" not in str(refused.value)


# --- a gateway that lies ---

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMEUP-Observe: 1\r\n"
DEEP = b"[" * 200_000
CHAT = frame(kinds.CHAT, {"message": "hello"})


def answer(status: int, body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body)


@asynccontextmanager
async def connected(stream: bytes, post: bytes = b"", *, ends: bool) -> AsyncGenerator[Transport]:
    """A connection to what answers with these bytes: to a GET, and to each POST."""

    async def serve(client: ByteStream) -> None:
        async with client:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):  # it may have given up
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await client.receive()
                is_stream = head.startswith(b"GET")
                await client.send(stream if is_stream else post)
                if not (is_stream and ends):
                    await anyio.sleep_forever()

    listeners = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listeners.listeners[0].extra(anyio.abc.SocketAttribute.local_port)
    connector = http_connector(
        f"http://127.0.0.1:{port}", space="here", participant="me", max_frame_bytes=300_000
    )
    async with listeners, anyio.create_task_group() as tasks:
        tasks.start_soon(listeners.serve, serve)
        with anyio.fail_after(PATIENCE):
            async with connector({"Authorization": "Bearer t"}) as transport:
                yield transport
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b"\r\nid: " + b"9" * 5_000 + b"\ndata: {}\n\n", ABNORMAL),
        (b"Content-Encoding: gzip\r\n\r\n" + b"data: {}\n\n" * 10, ABNORMAL),
        (b"\r\nevent: close\ndata: " + DEEP + b"\n\n", ABNORMAL),
        (b'\r\nevent: close\ndata: {"code": 9999999999}\n\n', ABNORMAL),
        (b"\r\n" + b"data:\n" * 300_002, TOO_BIG),
    ],
    ids=["number", "compressed", "deep", "code", "empty lines"],
)
async def test_a_stream_that_lies_ends_the_connection_and_nothing_else(
    stream: bytes, code: int
) -> None:
    async with connected(STREAM_HEAD + stream, ends=code == ABNORMAL) as transport:
        async for _ in transport:
            pass
        assert transport.closed is not None
        assert transport.closed.code == code


@pytest.mark.anyio
@pytest.mark.parametrize(
    "post",
    [
        answer(400, DEEP),
        answer(400, b"garbage", b"Content-Encoding: gzip"),
        answer(400, b"x" * 2_000_000),
        answer(302, b"", b"Location: http://127.0.0.1:9/"),
        answer(503, b'{"error": "unavailable", "message": "the gateway stops"}'),
    ],
    ids=["deep", "compressed", "large", "redirect", "stopping"],
)
async def test_an_answer_to_a_frame_that_is_none_ends_the_connection(post: bytes) -> None:
    """The frame may have been taken, or may be taken later: the session says it again."""
    async with connected(STREAM_HEAD + b"\r\n: here\n\n", post, ends=False) as transport:
        with pytest.raises(TransportClosed):
            await transport.send(CHAT)
        assert transport.closed == CloseInfo(ABNORMAL)


@pytest.mark.anyio
async def test_an_answer_that_never_ends_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS", 0.1)
    drip = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10
    async with connected(STREAM_HEAD + b"\r\n: here\n\n", drip, ends=False) as transport:
        with pytest.raises(TransportClosed):
            await transport.send(CHAT)


@pytest.mark.anyio
async def test_a_refusal_has_the_number_of_a_frame_that_can_be_read_before_it() -> None:
    """Or a resume after it would leave out what waits for room behind it."""
    events = b"".join(b'id: %d\ndata: {"n":%d}\n\n' % (n, n) for n in range(1, 41))
    refusal = answer(403, b'{"error": "forbidden", "message": "no"}')
    async with connected(STREAM_HEAD + b"\r\n" + events, refusal, ends=False) as transport:
        last = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.send, CHAT)
            # As long as nothing is read, the frames that have room are the only ones before it.
            await anyio.wait_all_tasks_blocked()
            async for each in transport:
                said = json.loads(each)
                if "n" in said:
                    last = said["n"]
                else:
                    assert said["seq"] <= last
                    break

"""A client of a gateway's HTTP API: its address, its token, and answers that never end."""

from contextlib import suppress

import anyio
import httpx
import pytest
from anyio.abc import ByteStream

from meup_agent.errors import ConfigurationError
from meup_agent.transport.http import check_http_url, fetch, open_client
from tests.patience import PATIENCE


@pytest.mark.parametrize(
    "url",
    ["localhost:8421", "ws://localhost:8421", "http://", "", "http://[::1", "http://here:99999"],
)
def test_an_address_that_is_none_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(ConfigurationError, match="give one such as http://localhost:8420"):
        check_http_url(url)


async def test_a_token_that_no_header_can_hold_is_refused_and_not_shown() -> None:
    bad = "Bearer s\N{LATIN SMALL LETTER E WITH ACUTE}cret"
    with pytest.raises(ConfigurationError, match="Authorization") as refused:
        async with open_client("http://localhost:8421", bad):
            pass
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize("head", [b"Content-Length: 2000000", b"Content-Encoding: gzip"])
async def test_an_answer_has_a_bound_and_is_not_decompressed(head: bytes) -> None:
    async def serve(client: ByteStream) -> None:
        async with client:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await client.receive()
                await client.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % head)
                await client.send(b"x" * 1_000)
                while b"Length" in head:
                    await client.send(b"x" * 100_000)

    listeners = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listeners.listeners[0].extra(anyio.abc.SocketAttribute.local_port)
    async with listeners, anyio.create_task_group() as tasks:
        tasks.start_soon(listeners.serve, serve)
        with anyio.fail_after(PATIENCE):
            async with open_client(f"http://127.0.0.1:{port}", "Bearer t") as client:
                asking = fetch(client, "/me", params={}, max_bytes=10_000)
                if b"gzip" in head:
                    assert (await asking).content == b"x" * 1_000
                else:
                    with pytest.raises(httpx.ReadError, match="more than 10000 bytes"):
                        await asking
        tasks.cancel_scope.cancel()

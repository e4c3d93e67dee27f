"""The connection on asyncio, beyond the contract of every transport."""

from contextlib import suppress
from typing import Any

import anyio
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from meup_agent.transport.websocket_asyncio import open_websocket
from tests.patience import PATIENCE


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


async def test_transport_that_has_ended_is_not_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asyncio's raises then, if it was closed with something left to write."""

    class Ended:
        def abort(self) -> None:
            raise AttributeError("'NoneType' object has no attribute 'call_soon'")

    async def read(server: ServerConnection) -> None:
        await server.wait_closed()

    with anyio.fail_after(PATIENCE):
        async with serve(read, "127.0.0.1", 0) as server:
            host, port = next(iter(server.sockets)).getsockname()
            url = f"ws://{host}:{port}"
            async with open_websocket(url, url, open_timeout=PATIENCE) as wire:
                await wire.close()
                monkeypatch.setattr(wire, "transport", Ended())
                await wire.abort()


READS = b"".join(
    (
        b"\x81\x05first",
        b"\x82\x7e\x00\x80" + 128 * b"#",
        b"\x01\x03one",  # a message of two frames, with a ping between them
        b"\x89\x00",
        b"\x80\x04 two",
        b"\x81\x04last",
        b"\x88\x02\x03\xe8",
    )
)
"""What a peer sends: messages of one frame and of several, and a close frame."""


@pytest.mark.parametrize("is_known", [True, False], ids=["", "by another library"])
@pytest.mark.parametrize("size", [1, 3, 7, 11, 139, 160, len(READS)])
async def test_messages_are_read_however_reads_cut_them(size: int, is_known: bool) -> None:
    heard: list[bytes] = []
    with anyio.fail_after(PATIENCE):
        async with serve(ServerConnection.wait_closed, "127.0.0.1", 0) as server:
            host, port = next(iter(server.sockets)).getsockname()
            url = f"ws://{host}:{port}"
            async with open_websocket(url, url, open_timeout=PATIENCE) as wire:
                if not is_known:
                    reader: Any = wire.protocol
                    reader.parser = map(id, reader.parser)  # no generator
                for start in range(0, len(READS), size):
                    wire.data_received(READS[start : start + size])
                with suppress(ConnectionClosed):
                    while True:
                        heard.append(bytes(await wire.recv(False)))
    assert heard == [b"first", 128 * b"#", b"one two", b"last"]

"""The connection on asyncio, beyond the contract of every transport."""

import anyio
import pytest
from websockets.asyncio.server import ServerConnection, serve

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

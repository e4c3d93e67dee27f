"""MCP clients at `/mcp` of a gateway's own port."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx

from meup_agent.cli.up.endpoints import MCP_PATH, McpEndpoint
from meup_agent.gateway import Config, SpaceConfig
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateways import RunningGateway, new_token, participant, serve
from tests.mcp.conftest import ANYTHING, BOTH, OLD, hello
from tests.no_tls import ALONE
from tests.patience import PATIENCE

FIRST, SECOND = new_token(), new_token()


def config(*tokens: str) -> Config:
    return Config((SpaceConfig("demo", {"ann": participant("ann", ANYTHING, tokens)}),), port=0)


@asynccontextmanager
async def door(*tokens: str) -> AsyncGenerator[RunningGateway]:
    endpoint = McpEndpoint()
    async with (
        serve(config(*tokens), routes={MCP_PATH: endpoint}) as gateway,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(endpoint.run, gateway, "127.0.0.1")
        with anyio.fail_after(PATIENCE):
            yield gateway
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def listening(
    http: httpx.AsyncClient, gateway: RunningGateway, token: str
) -> AsyncGenerator[httpx.Response]:
    """The stream of a new session, by which a server speaks without being asked."""
    url = f"{gateway.http_url}{MCP_PATH}"
    headers = {**BOTH, "Authorization": f"Bearer {token}"}
    opened = await http.post(url, json=hello(), headers=headers)
    assert opened.status_code == 200
    headers |= {"mcp-session-id": opened.headers["mcp-session-id"]}
    headers |= {"mcp-protocol-version": OLD[-1]}
    begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await http.post(url, json=begun, headers=headers)).status_code == 202
    async with http.stream("GET", url, headers=headers) as stream:
        assert stream.status_code == 200
        yield stream


async def test_a_stream_ends_with_its_token_and_no_other_does() -> None:
    async with door(FIRST, SECOND) as gateway, httpx.AsyncClient(**ALONE) as http:
        # The participant is there by the token that stays.
        async with (
            listening(http, gateway, SECOND) as stays,
            listening(http, gateway, FIRST) as ends,
        ):
            gateway.reload(config(SECOND))
            async for _ in ends.aiter_raw():
                pass
            headers = {**BOTH, "Authorization": f"Bearer {SECOND}"}
            headers |= {"mcp-session-id": stays.request.headers["mcp-session-id"]}
            headers |= {"mcp-protocol-version": OLD[-1]}
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            answer = await http.post(str(stays.request.url), json=ping, headers=headers)
            assert answer.status_code == 200

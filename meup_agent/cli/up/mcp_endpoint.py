"""The MCP server of a gateway's spaces, at ``/mcp`` of its own port.

It is the server of ``meup mcp --http`` in the gateway's process. A client is the participant of its
token, in that participant's space, by a connection beside others (PROTOCOL 3): what it does is
decided, kept and shown as over a socket of its own. A token is looked up where the gateway looks,
so an unknown one costs no connection.
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import anyio
from anyio import to_thread

from meup_agent.cli.up.late_app import LateApp
from meup_agent.errors import TokenRefused
from meup_agent.gateway.network import is_loopback, serves_http

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from meup_agent.agent.agent import Agent
    from meup_agent.client.space import Space
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.server import RunningGateway

MCP_PATH: Final = "/mcp"

log = logging.getLogger("meup_agent.mcp")


def serves_mcp(settings: Config) -> bool:
    """True if a gateway has HTTP to serve MCP clients by, and what that needs is installed."""
    return serves_http(settings) and find_spec("mcp") is not None


class McpEndpoint(LateApp):
    """An ASGI application that serves MCP clients while :meth:`run` runs.

    Args:
        answer_within: Seconds until a call that waits is answered with *still waits*; 0: never;
            ``None``: before its client gives up.
    """

    def __init__(self, answer_within: float | None = None) -> None:
        super().__init__()
        self._answer_within = answer_within

    async def run(self, gateway: RunningGateway, host: str) -> None:
        """Serve the spaces of a gateway that listens at a host, until cancelled."""
        with self.loading():
            await self._serve(gateway, host)

    async def _serve(self, gateway: RunningGateway, host: str) -> None:
        # In a thread, as it takes a second or two, in which the gateway serves and servers start.
        await to_thread.run_sync(import_module, "meup_agent.mcp.server.http")
        from meup_agent.mcp.server.client_member import ClientMembers
        from meup_agent.mcp.server.http import LOOPBACK_HOSTS, McpApp
        from meup_agent.mcp.server.tool_calls import CallSettings
        from meup_agent.transport.websocket import SpaceConnector

        def find(token: str) -> str | None:
            identity = gateway.runtime.tokens.identify(token)
            # Participants of two spaces may have one name.
            return identity and f"{quote(identity.space, safe='')}/{identity.participant}"

        def join(
            agent: Agent, token: str | None, /, *, observe: bool = False
        ) -> AbstractAsyncContextManager[Space]:
            assert not observe, "tokens are looked up"
            identity = None if token is None else gateway.runtime.tokens.identify(token)
            if identity is None:
                raise TokenRefused("no participant has this token")
            connector = SpaceConnector(gateway.own_url, identity.space)
            return agent.join(connector, token=token, beside=True)

        members = ClientMembers(join, find=find)
        app = McpApp(
            members,
            settings=CallSettings(answer_within=self._answer_within),
            hosts=LOOPBACK_HOSTS if is_loopback(host) else None,
            path=MCP_PATH,
        )
        gateway.runtime.on_reload.append(members.check_found)
        try:
            async with app.lifespan():
                log.info("MCP clients find the space at %s%s", gateway.http_url, MCP_PATH)
                self.answer_by(app)
                await anyio.sleep_forever()
        finally:
            gateway.runtime.on_reload.remove(members.check_found)

"""The hooks of coding agents, at ``/hooks/AGENT`` of a gateway's own port.

The hooks of a token are a door of its own in the gateway's process: a connection beside others
(PROTOCOL 3), which ends with the token. That is looked up where the gateway looks, and paced as at
its HTTP API.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import anyio
from anyio import to_thread

from meup_agent.cli.up.late_app import LateApp
from meup_agent.gateway.network import serves_http

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Scope

    from meup_agent.agent.agent import Agent
    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.server import RunningGateway

HOOKS_PATH: Final = "/hooks/{agent}"


class _Login(NamedTuple):
    key: str
    token: str


def _key_of(identity: Identity) -> str:
    """The name of a participant; those of two spaces may have one name."""
    return f"{quote(identity.space, safe='')}/{identity.participant}"


def serves_hooks(settings: Config) -> bool:
    """True if a gateway has HTTP, by which hooks are answered."""
    return serves_http(settings)


class HookEndpoint(LateApp):
    """An ASGI application that answers hooks while :meth:`run` runs."""

    def __init__(self, mode: Any = "enforce") -> None:
        super().__init__()
        self._mode = mode

    async def run(self, gateway: RunningGateway) -> None:
        """Answer the hooks of a gateway's participants, until cancelled."""
        with self.loading():
            await self._serve(gateway)

    async def _serve(self, gateway: RunningGateway) -> None:
        # In a thread, as it takes a moment, in which the gateway serves.
        await to_thread.run_sync(import_module, "meup_agent.doors.hook_app")
        from starlette.requests import HTTPConnection

        from meup_agent.doors.hook_app import HookApp, NotLoggedIn
        from meup_agent.errors import TokenRefused
        from meup_agent.gateway.auth import NotAdmitted
        from meup_agent.gateway.console.local_session import LocalSpace
        from meup_agent.gateway.edge.handshake import bearer
        from meup_agent.gateway.edge.http.context import authenticate

        runtime = gateway.runtime

        def log_in(scope: Scope) -> _Login:
            connection = HTTPConnection(scope)
            try:
                identity = authenticate(runtime, connection)
            except NotAdmitted as refused:
                raise NotLoggedIn(refused.status, str(refused)) from None
            return _Login(_key_of(identity), bearer(connection.headers["authorization"]))

        def join(agent: Agent, token: str, /) -> AbstractAsyncContextManager[Space]:
            identity = runtime.tokens.identify(token)
            if identity is None:
                raise TokenRefused("no participant has this token")
            return agent.join(LocalSpace(runtime, identity), beside=True)

        app = HookApp(join, log_in, self._mode)

        def check_tokens() -> None:
            identify = runtime.tokens.identify
            app.check_found(lambda token: (found := identify(token)) and _key_of(found))

        runtime.on_reload.append(check_tokens)
        try:
            async with app.run():
                self.answer_by(app)
                await anyio.sleep_forever()
        finally:
            runtime.on_reload.remove(check_tokens)

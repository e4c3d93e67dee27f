"""The gateway: the server that participants meet at.

A :class:`~meup_agent.gateway.runtime.GatewayRuntime` owns the spaces, the connections, the tokens,
the limits and the journal. Bytes come in through ``edge/``; what an envelope does is decided by
:mod:`meup_agent.protocol.space`; what is accepted is kept in ``journal/``, and goes to each member
through its queue (:mod:`member`), counted by :mod:`backlog`. Whatever a stranger or a member can
make grow has a limit, and each limit one row in :mod:`limits`. The identity of a sender comes from
its token alone. The gateway starts no participant, and changes no payload.

Importing this package needs nothing beyond the standard dependencies; running a gateway needs the
extra ``gateway``, which is loaded with the first name that is used.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from meup_agent.gateway.config import (
        Config,
        HttpConfig,
        JournalConfig,
        ParticipantConfig,
        SpaceConfig,
        TlsConfig,
    )
    from meup_agent.gateway.config_file import load_config
    from meup_agent.gateway.edge.mount import GatewayApp, asgi_app
    from meup_agent.gateway.embedded import Gateway, ThreadedGateway
    from meup_agent.gateway.limits import GatewayLimits
    from meup_agent.gateway.presets import dev_config
    from meup_agent.gateway.server import RunningGateway, serve

__all__ = [
    "Config",
    "Gateway",
    "GatewayApp",
    "GatewayLimits",
    "HttpConfig",
    "JournalConfig",
    "ParticipantConfig",
    "RunningGateway",
    "SpaceConfig",
    "ThreadedGateway",
    "TlsConfig",
    "asgi_app",
    "dev_config",
    "load_config",
    "serve",
]

_MODULES = {
    "Config": "config",
    "Gateway": "embedded",
    "GatewayApp": "edge.mount",
    "GatewayLimits": "limits",
    "HttpConfig": "config",
    "JournalConfig": "config",
    "ParticipantConfig": "config",
    "RunningGateway": "server",
    "SpaceConfig": "config",
    "ThreadedGateway": "embedded",
    "TlsConfig": "config",
    "asgi_app": "edge.mount",
    "dev_config": "presets",
    "load_config": "config_file",
    "serve": "server",
}


if not typing.TYPE_CHECKING:  # or every name would pass for one of ours

    def __getattr__(name: str) -> object:
        """A public name, loaded when it is first used: the space for tests needs no web server."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)

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

if typing.TYPE_CHECKING:  # the names of _PUBLIC, for type checkers
    from meup_agent.gateway.config import Config as Config
    from meup_agent.gateway.config import HttpConfig as HttpConfig
    from meup_agent.gateway.config import JournalConfig as JournalConfig
    from meup_agent.gateway.config import ParticipantConfig as ParticipantConfig
    from meup_agent.gateway.config import SpaceConfig as SpaceConfig
    from meup_agent.gateway.config import TlsConfig as TlsConfig
    from meup_agent.gateway.config_file import load_config as load_config
    from meup_agent.gateway.edge.mount import GatewayApp as GatewayApp
    from meup_agent.gateway.edge.mount import asgi_app as asgi_app
    from meup_agent.gateway.embedded import Gateway as Gateway
    from meup_agent.gateway.embedded import ThreadedGateway as ThreadedGateway
    from meup_agent.gateway.limits import GatewayLimits as GatewayLimits
    from meup_agent.gateway.presets import dev_config as dev_config
    from meup_agent.gateway.server import RunningGateway as RunningGateway
    from meup_agent.gateway.server import serve as serve
else:  # or every name would pass for one of ours
    _PUBLIC = {
        "config": "Config HttpConfig JournalConfig ParticipantConfig SpaceConfig TlsConfig",
        "config_file": "load_config",
        "edge.mount": "GatewayApp asgi_app",
        "embedded": "Gateway ThreadedGateway",
        "limits": "GatewayLimits",
        "presets": "dev_config",
        "server": "RunningGateway serve",
    }
    """Module of this package → the public names in it."""

    _MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        """A public name, loaded when it is first used: the space for tests needs no web server."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)

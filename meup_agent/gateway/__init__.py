"""The gateway: the server that participants meet at.

A :class:`~meup_agent.gateway.runtime.GatewayRuntime` owns the spaces, the connections, the tokens,
the limits and the journal. Bytes come in through ``edge/``; what an envelope does is decided by
:mod:`meup_agent.protocol.space`; what is accepted is kept in ``journal/``, and goes to each member
through its queue, counted (:mod:`frame_queue`). Whatever a stranger or a member
can make grow has a limit, and each limit one row in :mod:`limits`. The identity of a sender comes
from its token alone. The gateway starts no participant, and changes no payload.

Importing this package needs nothing beyond the standard dependencies; running a gateway needs the
extra ``gateway``, which is loaded with the first name that is used.
"""

from __future__ import annotations

from meup_agent import lazy_names

_NAMES = lazy_names.read_names(__spec__)

__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll] - the stub has it


def __getattr__(name: str) -> object:
    """A public name, loaded when it is first used: the space for tests needs no web server."""
    return lazy_names.load_name(__name__, _NAMES, name)

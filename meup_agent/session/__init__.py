"""One participant's presence in a space, over as many connections as it takes.

:class:`~meup_agent.session.session.Session` owns the exchange table, the outbox and the waits of
callers. A :class:`~meup_agent.session.connection.ConnectedSession` dials, and dials again after a
loss; it is the only place that does. To it frames come through
:class:`~meup_agent.session.connection.SessionConnection`, one for each connection, which decodes
each and hands it to the table; the table's effects start and cancel handlers, end waits and fill
the outbox, whose one writer sends.

The reader never waits for a program's code, so a withdraw or cancel takes effect before any work
that comes after it. The session decides nothing of an exchange: the table does. It sends a request
twice only where the caller or the gateway made that safe.
"""

from __future__ import annotations

from meup_agent.session.connection import ConnectedSession
from meup_agent.session.session import Session, SessionMaker
from meup_agent.session.settings import Backoff, Handlers, Settings

__all__ = ["Backoff", "ConnectedSession", "Handlers", "Session", "SessionMaker", "Settings"]

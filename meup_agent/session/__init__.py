"""One participant's presence in a space, over as many connections as it takes."""

from __future__ import annotations

from meup_agent.session.reconnector import Backoff
from meup_agent.session.session import Session
from meup_agent.session.settings import Handlers, Settings

__all__ = ["Backoff", "Handlers", "Session", "Settings"]

"""The gateway's log: one line for each event of a connection, and never a token."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger("meup_agent.gateway")

MAX_SHOWN_CHARS: Final = 80
"""Characters of a stranger's text in the log."""


def shown(text: str) -> str:
    """A stranger's text as it may stand in a log: quoted, escaped and cut."""
    cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    return ascii(cut)

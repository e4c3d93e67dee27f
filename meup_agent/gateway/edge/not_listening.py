"""Why an address cannot be listened at."""

from __future__ import annotations

import os

from meup_agent.errors import ConfigurationError


def not_listening(host: str, port: int, error: OSError, purpose: str = "") -> ConfigurationError:
    """The error in one sentence.

    Args:
        host: Where to listen.
        port: Where to listen.
        error: What the system, or the look-up of the name, says.
        purpose: What for, where it is not for WebSocket.
    """
    number = error.errno or 0
    # A loop's own words are longer than the system's; a name that is not found has a number of
    # its own, which is below zero.
    why = os.strerror(number) if number > 0 else error.strerror or str(error)
    return ConfigurationError(
        f"cannot listen at {host}:{port}{purpose}: {why.lower()}; choose another host or port"
    )

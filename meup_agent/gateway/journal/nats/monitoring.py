"""The monitoring port of a NATS server, which tells what its clients are not told."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any, Final
from urllib.request import ProxyHandler, build_opener

from meup_agent.errors import ConfigurationError

MONITORING_SECONDS: Final = 2.0
"""For the monitoring port to answer."""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Bytes of its answer that are read."""


def check_sync(address: str, server_id: str) -> None:
    """Refuse a server that does not ask its disk before it says that a message is kept; blocks.

    Args:
        address: That of its monitoring port.
        server_id: The server that is asked for.

    Raises:
        ConfigurationError: It does not, or it is another server, or it does not answer.
    """
    place = f"journal.nats.monitoring: {address}"
    try:
        # The server is at hand, whatever proxy the environment names for the rest of the world.
        opener = build_opener(ProxyHandler({}))
        with opener.open(f"{address.rstrip('/')}/varz", timeout=MONITORING_SECONDS) as answer:
            said: Any = json.loads(answer.read(MAX_ANSWER_BYTES))
            found = said["server_id"]
            is_safe = said["jetstream"]["config"].get("sync_always") is True
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{place} does not answer as the monitoring port of NATS does ({error}); correct the"
            " address, or remove the key"
        ) from None
    if found != server_id:
        raise ConfigurationError(
            f"{place} is of another server than that of journal.nats.servers; correct one of them"
        )
    if not is_safe:
        raise ConfigurationError(
            "journal.nats.replicas: of 1 copy a power cut may take what was accepted, since the"
            " server asks its disk every two minutes; set sync_interval: always under jetstream in"
            " its configuration, or replicas: 3"
        )

"""Raises the limit of open files to what a server's connections need."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Final

from meup_agent.gateway.config import Config
from meup_agent.gateway.edge.first_request import CONNECTIONS_TO_A_HANDSHAKE
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log
from meup_agent.gateway.network import serves_http

OTHER_FILES: Final = 64
"""Files that a server has open beside its connections: its ports, journal, log, libraries."""

BURST: Final = 4_096
"""Connections that may come in one turn of the loop, before any of them can be dropped: as many as
the system lets wait."""

OPEN_MAX: Final = 10_240
"""Most open files that macOS grants a process, whatever limit it reports."""


def fit_open_files(config: Config) -> Config:
    """Lower the connections of a configuration to the files that this process may have open.

    A gateway that runs out of files cannot even refuse a connection. If there are too few, the
    limit is lowered. The log warns of that where more were asked for than by default.
    """
    # A connection, its share of the handshakes, and as many callers over HTTP.
    each = 1 + 1 / CONNECTIONS_TO_A_HANDSHAKE + serves_http(config)
    connections = config.limits.max_connections
    needed = round(connections * each) + OTHER_FILES
    allowed = allow_open_files(needed)
    if allowed >= needed:
        return config
    fits = max(int((allowed - OTHER_FILES) / each), 1)
    log.log(
        logging.DEBUG if connections == GatewayLimits().max_connections else logging.WARNING,
        "this process may have only %d files open, so it takes %d connections in place of %d;"
        " allow it more (ulimit -n), or lower max_connections",
        allowed,
        fits,
        connections,
    )
    return replace(config, limits=replace(config.limits, max_connections=fits))


def allow_open_files(needed: int) -> int:
    """Raise this process's limit of open files as far as the system allows, and return it."""
    if sys.platform == "win32":
        return needed
    import resource

    wanted = needed + BURST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # macOS refuses more than this, and says that nothing bounds it.
    for files in (allowed, OPEN_MAX):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, soft), hard))
            break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

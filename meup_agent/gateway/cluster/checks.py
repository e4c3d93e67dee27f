"""The needs of several gateways, or of one replica of their logs; each refusal says a key."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.network import is_loopback

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config

log = logging.getLogger("meup_agent.gateway")


def check_several(config: Config) -> None:
    """Refuse what several gateways cannot have, where there are several.

    Raises:
        ConfigurationError: The configuration has it.
    """
    nats = config.journal.nats
    if nats is None or nats.advertise is None:
        return
    if nats.replicas == 1:
        if not is_loopback(nats.advertise.rpartition(":")[0].strip("[]")):
            raise ConfigurationError(
                "journal.nats.replicas: 1 would leave several gateways (journal.nats.advertise)"
                " with one server's disk, and all would stop with it; set replicas: 3, or remove"
                " advertise"
            )
        log.warning(
            "journal.nats.replicas is 1: the gateways of this machine stop with one server of NATS"
        )
    refuse_output_logs(config, "(journal.nats.advertise); remove one of them")


def refuse_output_logs(config: Config, why: str) -> None:
    """Refuse files of one machine where there are several gateways, for a reason.

    Raises:
        ConfigurationError: The configuration has such a file.
    """
    for (_, name), entry in config.entries():
        if entry.output_log is not None:
            raise ConfigurationError(
                f"output_log: {entry.output_log} of {name!r} is on one machine, and there are"
                f" several gateways {why}"
            )


def check_streams(config: Config) -> str:
    """Look whether the streams of the spaces are there as they should be, or not at all.

    A sentence for people about what nobody can see from here; empty: there is nothing.

    Raises:
        ConfigurationError: One of them is not.
    """
    nats = config.journal.nats
    if nats is None:
        return ""
    from meup_agent.gateway.journal.nats.journal import NatsArchive

    with closing(NatsArchive(nats, [space.id for space in config.spaces])) as archive:
        for space in archive.spaces:
            archive.log_of(space).refuse_copy()
    if nats.replicas == 1 and nats.monitoring is None:
        return (
            "journal.nats.replicas is 1, and whether the server keeps what it accepts through a"
            " power cut (sync_interval: always) is not seen from here; give its monitoring port"
            " (journal.nats.monitoring)"
        )
    return ""

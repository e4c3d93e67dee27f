"""Checks of a journal in PostgreSQL: the server, what it keeps, and the gateways that share it.

Nothing is changed: what tries a right is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from meup_agent.cli.doctor import MAX_SAID, NOT_TRIED, Check, failed_check
from meup_agent.cli.render.formatting import name_some
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible
from meup_agent.gateway.cluster.membership import config_parts, differing_parts
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.log import (
    DatabaseSession,
    look,
    owner_name,
    parts_of,
    postgres_of,
    read_parts,
    refusing,
    try_rights,
)

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config

_SERVER: Final = """
SELECT current_setting('server_version'), coalesce((SELECT version FROM pg_stat_ssl
    WHERE pid = pg_backend_pid() AND ssl), ''),
    coalesce(inet_client_addr() <<= '127.0.0.0/8' OR inet_client_addr() = '::1', true)
"""

_DURABILITY: Final = """
SELECT current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_standby_names')
"""

_GATEWAYS: Final = f"""
SELECT substr(application_name, length(%s) + 1), pid IN (
    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND classid::bigint = ({tables.LOCK_KEY} >> 32) & 4294967295
    AND objid::bigint = {tables.LOCK_KEY} & 4294967295
) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, %s) ORDER BY 1
"""


def examine_postgres(config: Config, begin: Callable[[str], None]) -> Iterator[Check]:
    """The checks of a configuration's journal, as they are done; blocks."""
    postgres = postgres_of(config.journal)
    is_there: bool | None = None  # not known

    def tables_there() -> Iterator[Check]:
        nonlocal is_there
        is_there = look(session)
        if is_there and (parts := parts_of(session)):
            said = f"{name_some(parts, 4)} is a copy that is not complete"
            advice = "run 'meup journal copy' again, or remove that schema"
            yield Check("tables", False, visible(said, MAX_SAID), advice)
        else:
            yield Check("tables", True, "as this version has them" if is_there else "none yet")

    def rights() -> Iterator[Check]:
        if is_there is None:
            yield Check("permissions", None, NOT_TRIED)
            return
        try_rights(session, is_there=is_there)
        yield Check("permissions", True, "all that a gateway needs")

    def gateways() -> Iterator[Check]:
        found = session.ask(_GATEWAYS, (owner_name(postgres),) * 2)
        at_work = [node for node, works in found if works]
        waiting = [node for node, works in found if not works]
        if not found:
            yield Check("gateways", None, "none runs")
            return
        if waiting:
            said = f"{name_some(waiting, 8)} {'waits' if len(waiting) == 1 else 'wait'}"
            yield Check("standby", True, visible(said, MAX_SAID))
        else:
            yield Check("standby", None, "no second gateway waits to take over")
        if not at_work or not is_there:
            advice = "the logs of the gateways, and their /readyz, say why"
            yield Check("gateways", False, "none is at work", advice)
            return
        ((*_, parts),) = session.ask(tables.STATE)
        differing = differing_parts(config_parts(config), read_parts(parts))
        said = f"{name_some(at_work, 1)} is at work"
        if differing:
            said += f"; it has other {name_some(differing, 4)} than this file"
        advice = "give all the same file, and start them again" if differing else ""
        yield Check("gateways", not differing, visible(said, MAX_SAID), advice)

    session = DatabaseSession(postgres)
    looks = {
        "server": lambda: _server(session),
        "durability": lambda: _durability(session),
        "tables": tables_there,
        "permissions": rights,
        "gateways": gateways,
    }
    with closing(session):
        begin("PostgreSQL")
        for name, look_at in looks.items():
            try:
                with refusing(session):
                    yield from look_at()
            except ConfigurationError as error:
                yield failed_check(name, error)
                if not session.was_reached:
                    yield from (Check(each, None, NOT_TRIED) for each in list(looks)[1:])
                    return


def _server(session: DatabaseSession) -> Iterator[Check]:
    ((version, tls, is_local),) = session.ask(_SERVER)
    said = f"{session.place}, version {version}, {tls or 'without TLS'}"
    advice = "" if tls or is_local else "over a network, put sslmode=verify-full into the address"
    yield Check("server", True, visible(said, MAX_SAID), advice)


def _durability(session: DatabaseSession) -> Iterator[Check]:
    ((syncs, whole_pages, replicas),) = session.ask(_DURABILITY)
    if not (syncs and whole_pages):
        what = "full_page_writes" if syncs else "fsync"
        said = f"{what} is off: a power cut can lose all of it"
        yield Check("durability", False, said, f"set {what} = on at the server")
    elif replicas:
        said = f"what is accepted is on its disk, and on replicas ({replicas})"
        yield Check("durability", True, visible(said, MAX_SAID))
    else:
        yield Check("durability", True, "what is accepted is on its disk, and on no replica")

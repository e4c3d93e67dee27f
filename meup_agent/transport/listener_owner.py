"""The user who has the other end of a connection on this machine.

The first bytes of a connection carry a token, and while no gateway runs any user can listen at
its port. So before them the owner of the other end is looked up: of a Unix socket by the
credentials that the kernel keeps, of TCP in the kernel's table of connections. Both are there on
Linux alone.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import struct
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence


TRUSTED_USER: Final = "MEUP_TRUSTED_USER"
"""The variable with the user, beside root and our own, who may run a gateway on this machine."""

ROOT: Final = 0

USER_MAP: Final = Path("/proc/self/uid_map")
"""The kernel's table of the users that have a number in the namespace of this process."""

ALL_USERS: Final = ["0", "0", "4294967295"]
"""Its words where each user has the number that it has outside."""

NO_NUMBER: Final = 65534
"""The number that the kernel gives those who have none in a namespace, all of them."""

TABLES: Final = Path("/proc/net")
"""The folder of the kernel's tables of TCP connections."""

LISTENING: Final = "0A"
"""The state of a socket that listens, as the tables have it."""

PIECE_BYTES: Final = 64 * 1024
"""Bytes of a table that are looked through at a time."""

MAX_WARNED: Final = 64
"""Addresses that are remembered, so that each is warned of once."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

log = logging.getLogger("meup_agent.transport")


class ForeignListener(ConnectionError):
    """Another user has the other end of a connection: what happened, and what to do."""

    def __init__(self, user: str, where: str) -> None:
        super().__init__(f"the user {user} listens at {where}, and was sent nothing")
        self.advice = (
            f"start your gateway, or set {TRUSTED_USER}={user} if that user runs it for you"
        )


class ConnectedSocket(Protocol):
    """The part of a socket that loops hand out in forms of their own."""

    @property
    def family(self) -> int: ...

    def getsockname(self) -> object:
        """The address of this end."""
        ...

    def getpeername(self) -> object:
        """The address of the other end."""
        ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """The bytes of an option."""
        ...


def check_listener(connection: ConnectedSocket) -> None:
    """Let a connection begin only where root, our user or a trusted one has its other end.

    Elsewhere than on this machine nothing is known, and nothing is said. Where an address of this
    machine's own leads out of the kernel's table, as into a container, a warning is logged.

    Raises:
        ForeignListener: Another user has it.
        OSError: The connection has ended.
        ConfigurationError: The variable for the trusted user names a user who is not there.
    """
    if sys.platform != "linux":
        return
    if connection.family == socket.AF_UNIX:
        where = os.fsdecode(connection.getpeername())  # type: ignore[arg-type]
        _check_user(_peer_credentials(connection), where)
        return
    own, peer = Endpoint.of(connection.getsockname()), Endpoint.of(connection.getpeername())
    if not (peer.host.is_loopback or peer.host == own.host):
        return
    users = _users_at(peer, own)
    for user in users:
        _check_user(user, str(peer))
    if not users and peer.host.is_loopback:
        _warn_unknown(str(peer))


def is_authenticated(tls: ssl.SSLContext | None) -> bool:
    """True if a certificate has shown who is at the other end: any user may be, as of a proxy."""
    return tls is not None and tls.check_hostname


def _check_user(user: int, where: str) -> None:
    is_ours = user in (ROOT, os.geteuid()) and not (user == NO_NUMBER and _is_anyone())
    if is_ours or user == _trusted_user():
        return
    raise ForeignListener(_name_of(user), where)


def _is_anyone() -> bool:
    """True if the number of those who have none may be any user's, as in a container."""
    return USER_MAP.exists() and USER_MAP.read_text("ascii").split() != ALL_USERS


@lru_cache(MAX_WARNED)
def _warn_unknown(where: str) -> None:
    log.warning(
        "the user who listens at %s is not known, as where a container or a proxy does, so anyone"
        " there gets the token; where you can, dial the gateway's Unix socket (meup env tells it)",
        where,
    )


def _trusted_user() -> int | None:
    """The user of the environment's variable."""
    import pwd  # not on every system

    given = os.environ.get(TRUSTED_USER, "").strip()
    if not given:
        return None
    try:
        return int(given) if given.isascii() and given.isdigit() else pwd.getpwnam(given).pw_uid
    except KeyError:
        raise ConfigurationError(
            f"{TRUSTED_USER} names {given!r}, which is not a user here; give a name or a number"
        ) from None


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _peer_credentials(connection: ConnectedSocket) -> int:
    """The user who began to listen at the other end of a Unix socket."""
    form = struct.Struct("iII")  # struct ucred: process, user, group
    option = getattr(socket, "SO_PEERCRED")  # noqa: B009 - not on every system
    _, user, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, option, form.size))
    return int(user)


# --- the kernel's tables ---


class Endpoint(NamedTuple):
    """A host and a port; an IPv4 address that was mapped into IPv6 is one of IPv4."""

    host: _Address
    port: int

    @classmethod
    def of(cls, name: object) -> Endpoint:
        """The endpoint that a socket names.

        Raises:
            OSError: It names none, so it is not connected any more.
        """
        if not isinstance(name, tuple):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        found, port = cast("tuple[str, int]", name[:2])
        host = ipaddress.ip_address(found.partition("%")[0])
        mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
        return cls(mapped or host, port)

    def __str__(self) -> str:
        return (
            f"[{self.host}]:{self.port}" if self.host.version == 6 else f"{self.host}:{self.port}"
        )


class SocketRow(NamedTuple):
    """A socket in a table; only one that a program holds has an inode."""

    user: int
    inode: int


def _find_rows(name: str, starts: Sequence[str]) -> list[SocketRow | None]:
    """The rows of a table that begin so, after their number; none where there is no such table.

    Any failure but that, as in some containers, is raised: a process that may open no more files
    must not take it for that. The table is read in pieces, since any user can make it long, and to
    the first of the rows at most, since the kernel writes what listens before what is connected.
    """
    found: list[SocketRow | None] = [None] * len(starts)
    wanted = [f": {each}".encode() for each in starts]
    with suppress(FileNotFoundError, PermissionError), (TABLES / name).open("rb") as table:
        rest = b""
        while piece := table.read(PIECE_BYTES):
            lines, end, rest = (rest + piece).rpartition(b"\n")
            lines += end
            for at, start in enumerate(wanted):
                begin = lines.find(start)
                if begin >= 0 and found[at] is None:
                    fields = lines[begin : lines.index(b"\n", begin)].split()
                    found[at] = SocketRow(user=int(fields[7]), inode=int(fields[9]))
            if found[0] is not None:
                break
    return found


def _written(endpoint: Endpoint, *, is_v6: bool) -> str:
    """An endpoint as the kernel writes it, in words that this machine's order makes numbers."""
    packed = endpoint.host.packed
    if is_v6 and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = (packed[each : each + 4] for each in range(0, len(packed), 4))
    host = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{host}:{endpoint.port:04X}"


def _users_at(peer: Endpoint, own: Endpoint) -> set[int]:
    """The users of the sockets that a connection ends at; empty: they are in no table.

    These are the connection's other end and what listens there. A connection that waits to be
    accepted is its listener's, and ends with it; older kernels write 0 for its user, and for that
    of one that the kernel itself accepted for a program (SMC). So 0 counts as root only where root
    listens, too. The listener alone is not enough: another one may have accepted, and gone.

    Raises:
        ConnectionResetError: Nothing holds the other end.
    """
    connection = listener = None
    everywhere = peer._replace(host=type(peer.host)(0))
    for is_v6 in (False, True) if peer.host.version == 4 else (True,):
        if connection is not None and listener is not None:
            break  # a table takes a millisecond or more
        at, to, every = (_written(each, is_v6=is_v6) for each in (peer, own, everywhere))
        zeros = "0" * (32 if is_v6 else 8)
        # At :: a socket of IPv6 listens for IPv4, too.
        places = (at, every, f"{zeros}:{peer.port:04X}")
        starts = [f"{at} {to} ", *(f"{place} {zeros}:0000 {LISTENING} " for place in places)]
        made, *listening = _find_rows("tcp6" if is_v6 else "tcp", starts)
        connection = connection or made
        listener = listener or next(filter(None, listening), None)
    users: set[int] = set() if listener is None else {listener.user}
    if connection is not None:
        if connection.inode and (users or connection.user != ROOT):
            users.add(connection.user)
        elif not users:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return users

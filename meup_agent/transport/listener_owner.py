"""Users of this machine who listen: none but root, our own and a trusted one is sent anything.

A port is anybody's while its gateway does not run: whoever takes it then would get the tokens of
those who dial again, and answer in the gateway's place. On Linux the kernel tells who has the other
end of a connection. This is loaded before each call of a coding agent, so it imports little.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from typing import Any, Final, Protocol

    class ConnectedSocket(Protocol):
        """The part of a socket that loops hand out in forms of their own."""

        @property
        def family(self) -> int: ...

        def getsockname(self) -> Any:
            """The address of this end."""
            ...

        def getpeername(self) -> Any:
            """The address of the other end."""
            ...

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            """The bytes of an option."""
            ...


TRUSTED_USER: Final = "MEUP_TRUSTED_USER"
"""The variable with the user, beside root and our own, who may run a gateway on this machine."""

ROOT: Final = 0

USER_MAP: Final = "/proc/self/uid_map"
"""The kernel's table of the users that have a number in the namespace of this process."""

ALL_USERS: Final = ["0", "0", "4294967295"]
"""Its words where each user has the number that it has outside."""

NO_NUMBER: Final = 65534
"""The number that the kernel gives those who have none in a namespace, all of them."""

TABLES: Final = "/proc/net"
"""The folder of the kernel's tables of TCP connections."""

LISTENING: Final = "0A"
"""The state of a socket that listens, as the tables have it."""

PIECE_BYTES: Final = 64 * 1024
"""Bytes of a table that are looked through at a time."""

MAX_WARNED: Final = 64
"""Addresses that are remembered, so that each is warned of once."""


class ForeignListener(ConnectionError):
    """Another user has the other end of a connection: what happened, and what to do."""

    def __init__(self, user: str, where: str) -> None:
        super().__init__(f"the user {user} listens at {where}, and was sent nothing")
        self.advice = (
            f"start your gateway, or set {TRUSTED_USER}={user} if that user runs it for you"
        )


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
        where = os.fsdecode(connection.getpeername())
        _check_user(_peer_credentials(connection), where)
        return
    own, peer = Endpoint.of(connection.getsockname()), Endpoint.of(connection.getpeername())
    if not (peer.is_loopback or peer.host == own.host):
        return
    users = _users_at(peer, own)
    for user in users:
        _check_user(user, str(peer))
    if not users and peer.is_loopback:
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
    try:
        with open(USER_MAP, encoding="ascii") as opened:
            return opened.read().split() != ALL_USERS
    except FileNotFoundError:
        return False


@lru_cache(MAX_WARNED)
def _warn_unknown(where: str) -> None:
    import logging

    logging.getLogger("meup_agent.transport").warning(
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
        from meup_agent.errors import ConfigurationError

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


_MAPPED: Final = bytes(10) + b"\xff\xff"
"""The beginning of an IPv4 address that was mapped into IPv6."""


class Endpoint:
    """A host, of 4 or 16 bytes, and a port; an IPv4 address mapped into IPv6 is one of IPv4."""

    __slots__ = ("host", "port")

    def __init__(self, host: bytes, port: int) -> None:
        self.host = host
        self.port = port

    @classmethod
    def of(cls, name: Any) -> Endpoint:
        """The endpoint that a socket names.

        Raises:
            OSError: It names none, so it is not connected any more.
        """
        try:
            host, port = name[:2]
        except (TypeError, ValueError):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN)) from None
        host = host.partition("%")[0]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return cls(socket.inet_pton(family, host).removeprefix(_MAPPED), port)

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET if len(self.host) == 4 else socket.AF_INET6

    @property
    def is_loopback(self) -> bool:
        return self.host[0] == 127 if len(self.host) == 4 else self.host == bytes(15) + b"\x01"

    def __str__(self) -> str:
        host = socket.inet_ntop(self.family, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class SocketRow:
    """A socket in a table; only one that a program holds has an inode."""

    __slots__ = ("inode", "user")

    def __init__(self, user: int, inode: int) -> None:
        self.user = user
        self.inode = inode


_ENDS: Final = struct.Struct("=2s2s16s16s12s")
"""Linux's `struct inet_diag_sockid`: ports and hosts of both ends, device and cookie."""

_QUESTION: Final = struct.Struct(f"=IHHII BBxxI{_ENDS.size}s")
"""`struct nlmsghdr` and `struct inet_diag_req_v2`: length, type, flags, number, sender; family,
protocol, states, ends."""

_ANSWER: Final = struct.Struct(f"=IHHII BBxx{_ENDS.size}s12xII")
"""`struct nlmsghdr` and `struct inet_diag_msg`, to its user and inode."""

_SOCK_DIAG: Final = 4
"""The protocol of netlink that tells of sockets (NETLINK_SOCK_DIAG)."""

_BY_FAMILY: Final = 20
"""The type of its questions and answers (SOCK_DIAG_BY_FAMILY)."""

_LISTENS: Final = 10
"""The state of a socket that listens (TCP_LISTEN)."""

_NO_COOKIE: Final = bytes(4) + b"\xff" * 8


def _ask_kernel(peer: Endpoint, own: Endpoint) -> tuple[SocketRow | None, SocketRow | None]:
    """The other end of a connection, and what listens there, as far as the kernel tells them.

    It finds both by their addresses, in 0.02 ms, where it writes its tables in some milliseconds:
    they have a row for each place of a connection that this machine has room for.
    """
    nowhere = Endpoint(bytes(len(peer.host)), 0)
    found = list[SocketRow | None]()
    try:
        with socket.socket(
            getattr(socket, "AF_NETLINK"),  # noqa: B009 - not on every system
            socket.SOCK_RAW | socket.SOCK_NONBLOCK,
            _SOCK_DIAG,
        ) as kernel:
            for number, other in enumerate((own, nowhere)):
                ports = (each.port.to_bytes(2) for each in (peer, other))
                hosts = (each.host for each in (peer, other))
                ends = _ENDS.pack(*ports, *hosts, _NO_COOKIE)
                head = (_QUESTION.size, _BY_FAMILY, 1, number, 0)
                kernel.sendto(
                    _QUESTION.pack(*head, peer.family, socket.IPPROTO_TCP, 0xFFFFFFFF, ends), (0, 0)
                )
                data, sender = kernel.recvfrom(4_096)
                found.append(_read_answer(data, number, other) if sender == (0, 0) else None)
    except OSError:  # a kernel or a container without it, which has the tables
        return None, None
    made, listening = found
    return made, listening


def _read_answer(data: bytes, number: int, other: Endpoint) -> SocketRow | None:
    """The socket in an answer: one that listens where the other end is nowhere, else another."""
    if len(data) < _ANSWER.size:
        return None  # an error: it has none, or tells nothing
    _, type_, _, answers, _, _, state, _, user, inode = _ANSWER.unpack_from(data)
    if type_ != _BY_FAMILY or answers != number or (state == _LISTENS) != (other.port == 0):
        return None
    return SocketRow(user, inode)


def _find_rows(name: str, starts: Sequence[str]) -> list[SocketRow | None]:
    """The rows of a table that begin so, after their number; none where there is no such table.

    Any failure but that, as in some containers, is raised: a process that may open no more files
    must not take it for that. The table is read in pieces, since any user can make it long, and to
    the first of the rows at most, since the kernel writes what listens before what is connected.
    """
    found: list[SocketRow | None] = [None] * len(starts)
    wanted = [f": {each}".encode() for each in starts]
    try:
        with open(os.path.join(TABLES, name), "rb") as table:
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
    except (FileNotFoundError, PermissionError):
        pass
    return found


def _written(endpoint: Endpoint, *, is_v6: bool) -> str:
    """An endpoint as the kernel writes it, in words that this machine's order makes numbers."""
    packed = endpoint.host
    if is_v6 and len(packed) == 4:
        packed = _MAPPED + packed
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
    connection, listener = _ask_kernel(peer, own)
    everywhere = Endpoint(bytes(len(peer.host)), peer.port)
    for is_v6 in (False, True) if len(peer.host) == 4 else (True,):
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

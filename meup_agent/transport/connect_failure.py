"""Failures to connect, in words: what happened, what to do, and whose the port is.

The advice is the same for an agent, for each command, and for ``meup doctor``.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from meup_agent.errors import CannotConnect, ConfigurationError, HandshakeRefused

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Iterable, Sequence


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
    family = socket.AF_INET if peer.host.version == 4 else socket.AF_INET6
    nowhere = Endpoint(type(peer.host)(0), 0)
    found = list[SocketRow | None]()
    try:
        with socket.socket(
            getattr(socket, "AF_NETLINK"),  # noqa: B009 - not on every system
            socket.SOCK_RAW | socket.SOCK_NONBLOCK,
            _SOCK_DIAG,
        ) as kernel:
            for number, other in enumerate((own, nowhere)):
                ports = (each.port.to_bytes(2) for each in (peer, other))
                hosts = (each.host.packed for each in (peer, other))
                ends = _ENDS.pack(*ports, *hosts, _NO_COOKIE)
                head = (_QUESTION.size, _BY_FAMILY, 1, number, 0)
                kernel.sendto(
                    _QUESTION.pack(*head, family, socket.IPPROTO_TCP, 0xFFFFFFFF, ends), (0, 0)
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
    connection, listener = _ask_kernel(peer, own)
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


MAX_REFUSAL_CHARS: Final = 500
"""Characters kept of what a gateway says with a refusal: room for a sentence or two, while an
HTML page of a proxy would fill the log."""

_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


@contextmanager
def explained(url: str, timeout: float) -> Generator[None]:
    """Turn the library's exceptions for a failed handshake into ours, in the block."""
    from websockets.exceptions import InvalidStatus, WebSocketException  # not for an address alone

    try:
        yield
    except InvalidStatus as error:
        answer = error.response
        headers, body = answer.headers.raw_items(), bytes(answer.body)
        raise refused(answer.status_code, headers, body, datetime.now(UTC)) from error
    except (OSError, WebSocketException) as error:
        raise cannot_connect(url, error, timeout) from error


def refused(
    status: int, headers: Iterable[tuple[str, str]], body: bytes, now: datetime
) -> HandshakeRefused:
    """The exception for an answer that is an HTTP status instead of a connection."""
    wait = next((value for name, value in headers if name.lower() == "retry-after"), None)
    text = body.decode(errors="replace").strip()[:MAX_REFUSAL_CHARS]
    return HandshakeRefused(status, None if wait is None else retry_after(wait, now), text)


def retry_after(value: str, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` asks to wait, as a number or a date (RFC 9110, 10.2.3)."""
    if _SECONDS.fullmatch(value.strip()):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    # A date in "-0000" comes back without a zone; HTTP knows only UTC.
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


def cannot_connect(url: str, error: BaseException, timeout: float) -> CannotConnect:
    parts = urlsplit(url)
    found = advice_for(error, parts.scheme) or Advice(reason_for(error, timeout), CHECK_PLACE)
    return CannotConnect(f"cannot connect to {parts.netloc or parts.path}: {found}")


def reason_for(error: BaseException, timeout: float) -> str:
    """The failure in a few words, whichever loop it comes from."""
    import ssl  # loaded at the first failure: it takes 4 ms of an agent's import

    match error:
        case TimeoutError(errno=None):
            return f"no answer within {timeout:g} seconds"
        case OSError(__cause__=BaseExceptionGroup() as attempts):
            # trio tries every address of a name and tells what became of each.
            return reason_for(attempts.exceptions[0], timeout)
        case OSError(errno=int(number)) if number > 0 and not isinstance(error, ssl.SSLError):
            # The system's words: asyncio puts its own in their place.
            return os.strerror(number).lower()
        case OSError(strerror=str(words)) if words:
            return words
        case BaseException(__cause__=ssl.SSLError() as reason):
            return str(reason)
        case ConnectionError() if not str(error):
            return "the connection was closed"
        case _:
            # httpx puts words of its own before the system's.
            for each in _causes(error):
                found = each.errno if isinstance(each, OSError) else None
                if found and found > 0 and not isinstance(each, ssl.SSLError):
                    return os.strerror(found).lower()
            return str(error) or type(error).__name__


MAX_CAUSES: Final = 16
"""Exceptions behind an exception that are looked at."""

_CERTIFICATES: Final = {
    9: "set this machine's clock, or use a certificate that has begun",
    10: "renew the gateway's certificate",
    18: "add it to what this machine trusts: SSL_CERT_FILE=its-certificate.pem",
    19: "add its root to what this machine trusts: SSL_CERT_FILE=root.pem",
    20: "add its root to what this machine trusts: SSL_CERT_FILE=root.pem",
    62: "dial by a name that stands in the certificate, or get one for this name",
    64: "dial by a name that stands in the certificate, or get one for this address",
}
"""Advice by OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_…)."""

CHECK_PLACE: Final = "check the address and that a gateway listens there"


class Advice(NamedTuple):
    """A failure to connect, in two halves of a sentence: it and its remedy."""

    said: str
    todo: str

    def __str__(self) -> str:
        """As the end of a sentence."""
        return f"{self.said}; {self.todo}"


def untrusted(error: ssl.SSLCertVerificationError) -> Advice:
    """A certificate that this machine does not trust."""
    return Advice(
        f"the certificate is not to be trusted: {error.verify_message}",
        _CERTIFICATES.get(error.verify_code, "use a certificate that this machine trusts"),
    )


def without_tls(scheme: str) -> str:
    """Advice where TLS was tried, and the other end does not speak it."""
    return f"write {scheme.removesuffix('s')}:// if the gateway has no TLS, or check the port"


def with_tls(scheme: str) -> str:
    """Advice where no TLS was tried, and the other end may want it."""
    if scheme == "unix":
        return "check the path"
    return f"check host, port and path; if it speaks TLS, write {scheme}s://"


def advice_for(error: BaseException, scheme: str) -> Advice | None:
    """Advice for another user at the port, TLS, or its lack; ``None`` for any other failure."""
    import ssl

    from websockets.exceptions import WebSocketException

    is_tls = scheme in ("wss", "https")
    for each in _causes(error):
        match each:
            case ForeignListener():
                return Advice(str(each), each.advice)
            case ssl.SSLCertVerificationError():
                return untrusted(each)
            case ssl.SSLError() if is_tls:
                reason = str(getattr(each, "reason", "") or "")
                why = f": {reason}".lower().replace("_", " ") if reason else ""
                return Advice(f"it speaks no TLS{why}", without_tls(scheme))
            case TimeoutError(errno=None) if is_tls:
                return Advice("no answer came in time", without_tls(scheme))
            case WebSocketException() if not is_tls:
                return Advice("what listens there answers no WebSocket handshake", with_tls(scheme))
            case _:
                pass
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and contexts, and the members of groups, breadth first."""
    waiting: list[BaseException] = [error]
    for _ in range(MAX_CAUSES):
        if not waiting:
            return
        each = waiting.pop(0)
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", each).exceptions
        waiting += [behind for behind in (each.__cause__ or each.__context__,) if behind]

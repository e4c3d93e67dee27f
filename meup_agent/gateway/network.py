"""Addresses and TLS of a gateway's ports, their errors, and the files they may open."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, NoReturn

from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.gateway.config import Config, TlsConfig
from meup_agent.gateway.edge.listener import CONNECTIONS_TO_A_HANDSHAKE
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log

# --- network ---

_LOCAL: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def local_host(host: str) -> str:
    """The host by which clients on this machine dial a port that listens at a host."""
    return _LOCAL.get(host, host)


def host_and_port(host: str, port: int) -> str:
    """A host and a port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PortAddress(NamedTuple):
    """The address of a port that listens."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        return f"{self.scheme}://{host_and_port(local_host(self.host), self.port)}"

    @property
    def listens_at(self) -> str:
        """The address that was configured, ``0.0.0.0`` included, which cannot be dialled."""
        return f"{self.scheme}://{host_and_port(self.host or '*', self.port)}"


def listen_error(host: str, port: int, error: OSError, purpose: str = "") -> ConfigurationError:
    """The error of the system, or of the look-up of a name, in one sentence."""
    number = error.errno or 0
    # A loop's own words are longer than the system's; a name that is not found has a number of
    # its own, which is below zero.
    why = os.strerror(number) if number > 0 else error.strerror or str(error)
    return ConfigurationError(
        f"cannot listen at {host}:{port}{purpose}: {why.lower()}; choose another host or port"
    )


def check_encrypted(host: str, tls: TlsConfig | None, *, insecure: bool) -> None:
    """Raise :exc:`ConfigurationError` if tokens could be read on their way to a port."""
    if tls is None and not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"listening at {host or 'every address'} without TLS would show tokens and messages to"
            " everyone on the path; give a certificate and its key (tls), or allow it (insecure)"
        )


def shares_port(config: Config, host: str) -> bool:
    """True if the port for WebSocket at a host serves HTTP as well.

    Where other machines reach it the configuration has to say so: its health and its metrics need
    no token.
    """
    if config.http is None:
        return is_loopback(host)
    return config.http.enabled and config.http_address is None


def serves_http(config: Config) -> bool:
    """True if a gateway serves HTTP, at the port for WebSocket or at one of its own."""
    return config.http_address is not None or shares_port(config, config.host)


def serves_console(config: Config, host: str) -> bool:
    """True if a gateway that listens at a host serves the console.

    Where other machines reach it the configuration has to say so: tokens are typed into it.
    """
    own = config.http_address
    if own is None and not shares_port(config, host):
        return False
    if config.http is None or config.http.console is None:
        return is_loopback(host if own is None else own[0])
    return config.http.console


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a port, from a certificate and a key that belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, tls, tls)
    return context


@contextmanager
def copied_certificate(tls: TlsConfig) -> Generator[TlsConfig]:
    """Copies of a certificate and its key, which check out, for the length of a block.

    The files may be replaced at any time, and what fails half-way leaves a port without any.
    """
    certificate, key = _read_pem("certificate", tls.certificate), _read_pem("key", tls.key)
    with ExitStack() as stack:
        with explain_os_error("tls: cannot be copied into a folder for a moment"):
            # Of this user alone; OpenSSL takes no content, but files.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="meup-")))
            copy = TlsConfig(folder / "certificate.pem", folder / "key.pem")
            copy.certificate.write_bytes(certificate)
            copy.key.write_bytes(key)
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), copy, tls)
        yield copy


def load_certificate(context: ssl.SSLContext, files: TlsConfig, named: TlsConfig) -> None:
    """Give a context a certificate and its key; connections that are open keep theirs.

    Args:
        context: The context.
        files: The files.
        named: The files that errors name.
    """
    for key, path in (("certificate", files.certificate), ("key", files.key)):
        _read_pem(key, path)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ConfigurationError:
        raise
    except (ssl.SSLError, ValueError):
        raise ConfigurationError(
            f"tls: {named.certificate} and {named.key} are not a certificate and its key in PEM"
            " form"
        ) from None


def _read_pem(key: str, path: Path) -> bytes:
    with explain_os_error(f"tls.{key}: {path} cannot be read"):
        return path.read_bytes()


def is_loopback(host: str) -> bool:
    """True if only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_password() -> NoReturn:
    """Refuse an encrypted key: OpenSSL would ask for its password at the terminal."""
    raise ConfigurationError("tls.key: is encrypted; give a key that is not")


# --- open files ---
# Raises the limit of open files to what a server's connections need.

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
    nats = config.journal.nats
    if nats is not None and nats.advertise is not None:
        each += 4  # two for one that is forwarded to another gateway, and two for one from there
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
    lowered = replace(config.limits, max_connections=fits)
    return replace(config, limits=lowered, written_limits=config.limits)


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

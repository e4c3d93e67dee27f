"""TLS of a gateway's ports, and where a gateway may do without."""

from __future__ import annotations

import ipaddress
import ssl
from typing import NoReturn

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.config import Config, TlsConfig


def check_encrypted(config: Config, host: str) -> None:
    """Check that nobody reads tokens on their way to a port.

    Args:
        config: What the gateway was told.
        host: Where the port listens.

    Raises:
        ConfigurationError: Others than this machine reach the port, and it does not encrypt.
    """
    if config.tls is None and not config.insecure and not is_loopback(host):
        raise ConfigurationError(
            f"listening at {host or 'every address'} without TLS would show tokens and messages to"
            " whoever is on the way; give a certificate and its key (tls), or allow it (insecure)"
        )


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """What a port encrypts with.

    Raises:
        ConfigurationError: The certificate or the key cannot be read, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for key, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            path.open("rb").close()
        except OSError as error:
            why = (error.strerror or "unknown reason").lower()
            raise ConfigurationError(f"tls.{key}: {path} cannot be read ({why})") from None
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except ConfigurationError:
        raise
    except (ssl.SSLError, ValueError):
        raise ConfigurationError(
            f"tls: {tls.certificate} and {tls.key} are no certificate and its key in PEM form"
        ) from None
    return context


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_password() -> NoReturn:
    """Nobody is there to be asked, and OpenSSL would ask at the terminal."""
    raise ConfigurationError("tls.key: is encrypted; give a key that is not")

"""A client of NATS: how it connects, what it sends, and the answers of JetStream."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Any, Final

from meup_agent.errors import ConfigurationError

try:
    from nats import errors as nats_errors
    from nats.aio.client import Client
    from nats.aio.transport import TcpTransport
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"journal.nats needs {error.name}, not installed here; run: pip install 'meup-agent[nats]'"
    ) from None

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from meup_agent.gateway.config import NatsConfig

__all__ = [
    "ANSWER_SECONDS",
    "RETRY_SECONDS",
    "ApiError",
    "NatsClient",
    "NoAnswer",
    "answer_in",
    "client_of",
    "nats_errors",
]

ANSWER_SECONDS: Final = 2.0
"""For a server to answer; then what became of a message is read from the log."""

RETRY_SECONDS: Final = 0.25
"""Between two attempts to reach a server, or to have something answered."""

PENDING_BYTES: Final = 64 * 1024 * 1024
"""Bytes that wait for a connection which is away: more than one message of each of many spaces."""


class ApiError(Exception):
    """An answer of JetStream that says no."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code


class NoAnswer(Exception):
    """A server did not answer, or none is there: whether it did what was asked is not known."""


def answer_in(message: Msg) -> dict[str, Any]:
    """An answer of JetStream.

    Raises:
        ApiError: It says no.
    """
    answer: dict[str, Any] = json.loads(message.data)
    if "error" in answer:
        refused = answer["error"]
        raise ApiError(int(refused.get("err_code", 0)), str(refused.get("description")))
    return answer


class NatsClient(Client):
    """A client that says who it is over TLS alone, where that is wanted, and can send at once.

    The library's goes on without TLS where the server, or who stands in for it, asks for none.
    """

    wants_tls = False

    def _connect_command(self) -> bytes:
        if self.wants_tls and not self._server_info.get("tls_required"):
            raise nats_errors.Error("it does not ask for TLS")
        return super()._connect_command()

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        # As a server writes them. The library's own takes half the time of reading a long log.
        lines = raw.decode(errors="replace").split("\r\n")
        return dict([line.split(": ", 1) for line in lines if ": " in line])

    async def send(self, command: bytes) -> None:
        """Send a command behind those that wait; a task of the library's would do so later."""
        await self._send_command(command)
        if self.is_connected and isinstance(self._transport, TcpTransport):
            transport: Any = self._transport
            transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        else:
            await self._flush_pending()


def client_of(config: NatsConfig) -> tuple[NatsClient, dict[str, Any]]:
    """A client that is not connected, and the options with which it connects.

    Raises:
        ConfigurationError: A file that it needs cannot be used.
    """
    options: dict[str, Any] = {}
    if config.user is not None:
        options |= {"user": config.user, "password": config.password}
    if config.credentials is not None:
        if not config.credentials.is_file():
            raise ConfigurationError(
                f"journal.nats.credentials: there is no file {config.credentials}"
            )
        options["user_credentials"] = str(config.credentials)
    client: Any = NatsClient()
    client.wants_tls = config.tls is not None or any(
        each.startswith("tls://") for each in config.servers
    )
    return client, {
        "servers": list(config.servers),
        "name": "meup",
        "tls": None if config.tls is None else _tls_context(config),
        "connect_timeout": ANSWER_SECONDS,
        "reconnect_time_wait": RETRY_SECONDS,
        "max_reconnect_attempts": -1,
        "ping_interval": 5,
        "pending_size": PENDING_BYTES,
        **options,
    }


def _tls_context(config: NatsConfig) -> ssl.SSLContext:
    tls = config.tls
    assert tls is not None, "it was asked before"
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"journal.nats.tls: a file cannot be used ({error})") from None
    return context

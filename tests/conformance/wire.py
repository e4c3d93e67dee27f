"""Participants that write frames by hand, and a gateway for them to meet at."""

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from meup_agent.gateway import Config, Gateway, SpaceConfig, ThreadedGateway
from tests.gateways import participant
from tests.patience import PATIENCE

Json = dict[str, Any]
Capabilities = Iterable[Mapping[str, Any]]

V01, V02, V04, MCPX = "meup/v0.1", "meup/v0.2", "mew/v0.4", "mcpx/v0.1"


class Wire:
    """A participant on a socket of its own, in whose frames stands what a test writes.

    Args:
        socket: The connection.
        name: Whose it is.
        dialect: What it writes for `protocol`.
    """

    def __init__(self, socket: ClientConnection, name: str, dialect: str) -> None:
        self.socket = socket
        self.name = name
        self.dialect = dialect
        self._ids = 0

    def send(self, kind: str, payload: object = None, /, **header: object) -> str:
        """Sends an envelope that has all that the dialect wants; returns its id."""
        self._ids += 1
        fields: Json = {
            "protocol": self.dialect,
            "id": f"{self.name}-{self._ids}",
            "ts": "2025-01-01T00:00:00.000Z",
            "from": self.name,
            "kind": kind,
            "payload": {} if payload is None else payload,
            **header,
        }
        self.write({name: value for name, value in fields.items() if value is not LEFT_OUT})
        return str(fields["id"])

    def write(self, frame: Json | str | bytes) -> None:
        """Sends whatever a test likes; bytes as a binary frame."""
        self.socket.send(json.dumps(frame) if isinstance(frame, dict) else frame)

    def read(self) -> str:
        """The next message, as it came."""
        data = self.socket.recv(PATIENCE)
        return data if isinstance(data, str) else data.decode()

    def hear_any(self) -> Json:
        """The next message, decoded."""
        said: Json = json.loads(self.read())
        return said

    def hear(self, kind: str) -> Json:
        """The next message, which must be an envelope of that kind."""
        said = self.hear_any()
        assert said["kind"] == kind, said
        return said

    def until(self, kind: str) -> Json:
        """The next envelope of a kind, whatever comes before."""
        while True:
            said: Json = json.loads(self.read())
            if said["kind"] == kind:
                return said

    def refused(self) -> Json:
        """The payload of the next message, which must be the gateway's error."""
        payload: Json = self.hear("system.error" if self.dialect == V01 else "system/error")[
            "payload"
        ]
        return payload

    def end(self) -> int:
        """The close code; nothing is expected before it."""
        try:
            raise AssertionError(self.read())
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006


LEFT_OUT: Any = object()
"""For a field that a test leaves out."""


class Dialled(Protocol):
    """The part of a gateway that joining needs."""

    @property
    def url(self) -> str: ...
    def token(self, participant: str, space: str | None = None) -> str: ...


class Site:
    """A gateway, and who joins it."""

    def __init__(self, gateway: Dialled, dialect: str) -> None:
        self.gateway = gateway
        self.dialect = dialect

    def dial(
        self, headers: Mapping[str, str] | None = None, path: str = "/ws?space=demo"
    ) -> ClientConnection:
        """A connection whose handshake has gone through, for `with`."""
        return connect(
            self.gateway.url + path,
            additional_headers=headers,
            compression=None,
            max_size=None,
            open_timeout=PATIENCE,
            close_timeout=0.2,
        )

    @contextmanager
    def join(
        self, *names: str, dialect: str | None = None, space: str = "demo"
    ) -> Generator[list[Wire]]:
        """Members that joined one after the other, and have read all that this made others say."""
        with ExitStack() as stack:
            joined: list[Wire] = []
            for name in names:
                wire = stack.enter_context(self.member(name, dialect=dialect, space=space))
                joined.append(wire)
                wire.until("system.welcome" if wire.dialect == V01 else "system/welcome")
                for each in joined:
                    each.until("system.presence" if each.dialect == V01 else "system/presence")
            yield joined

    @contextmanager
    def member(
        self,
        name: str,
        *,
        dialect: str | None = None,
        space: str = "demo",
        more: Mapping[str, str] | None = None,
    ) -> Generator[Wire]:
        """A member whose handshake says all, with more headers, and who has read nothing yet."""
        spoken = dialect or self.dialect
        headers = {
            "Authorization": f"Bearer {self.gateway.token(name, space)}",
            "MEUP-Protocol": spoken,
            **(more or {}),
        }
        with self.dial(headers, f"/ws?space={space}") as socket:
            yield Wire(socket, name, spoken)


def serving(
    participants: Mapping[str, Capabilities],
    *,
    dialect: str | None = None,
    dialects: Mapping[str, str] | None = None,
    more: Mapping[str, Mapping[str, Capabilities]] | None = None,
) -> AbstractContextManager[ThreadedGateway]:
    """A gateway in a thread; see :func:`config_of`."""
    config = config_of(participants, dialect=dialect, dialects=dialects, more=more)
    return Gateway(config=config).in_thread()


def config_of(
    participants: Mapping[str, Capabilities],
    *,
    dialect: str | None = None,
    dialects: Mapping[str, str] | None = None,
    more: Mapping[str, Mapping[str, Capabilities]] | None = None,
) -> Config:
    """A configuration.

    Args:
        participants: Of the space `demo`, by name, and what they may send; `name-token` is theirs.
        dialect: The default of its spaces.
        dialects: What participants of `demo` speak by configuration.
        more: Other spaces and their participants.
    """
    own = dialects or {}
    members = {
        name: participant(name, may, (f"{name}-token",), dialect=own.get(name))
        for name, may in participants.items()
    }
    spaces = [SpaceConfig("demo", members, dialect=dialect)]
    for space, others in (more or {}).items():
        there = {
            name: participant(name, may, (f"{name}-token-{space}",)) for name, may in others.items()
        }
        spaces.append(SpaceConfig(space, there, dialect=dialect))
    return Config(tuple(spaces))

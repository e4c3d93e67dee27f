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
        fields: Json = {"protocol": self.dialect, "id": f"{self.name}-{self._ids}"}
        fields |= {"ts": "2025-01-01T00:00:00.000Z", "from": self.name, "kind": kind}
        fields |= {"payload": {} if payload is None else payload, **header}
        self.write({name: value for name, value in fields.items() if value is not LEFT_OUT})
        return str(fields["id"])

    def write(self, frame: Json | str | bytes) -> None:
        """Sends whatever a test likes; bytes as a binary frame."""
        self.socket.send(json.dumps(frame) if isinstance(frame, dict) else frame)

    def read(self) -> str:
        data = self.socket.recv(PATIENCE)
        return data if isinstance(data, str) else data.decode()

    def hear_any(self) -> Json:
        said: Json = json.loads(self.read())
        return said

    def hear(self, kind: str) -> Json:
        """The next message, which must be an envelope of that kind."""
        said = self.hear_any()
        assert said["kind"] == kind, said
        return said

    def until(self, kind: str) -> Json:
        """The next envelope of a kind, whatever comes before."""
        while (said := self.hear_any())["kind"] != kind:
            pass
        return said

    def refused(self) -> Json:
        """The payload of the next message, which must be the gateway's error."""
        payload: Json = self.hear(self.own("system/error"))["payload"]
        return payload

    def refusal(self) -> str:
        """The code of the gateway's next error, whatever comes before."""
        return str(self.until(self.own("system/error"))["payload"]["error"])

    def own(self, kind: str) -> str:
        """A kind of the gateway's, in the member's dialect."""
        return kind.replace("/", ".") if self.dialect == V01 else kind

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
        options: Json = {"compression": None, "max_size": None, "close_timeout": 0.2}
        options |= {"additional_headers": headers, "open_timeout": PATIENCE}
        return connect(self.gateway.url + path, **options)

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
                wire.until(wire.own("system/welcome"))
                for each in joined:
                    each.until(each.own("system/presence"))
            yield joined

    @contextmanager
    def by_frame(
        self,
        name: str,
        path: str = "/",
        *,
        dialect: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Generator[Wire]:
        """A connection that has said nothing yet, for a join frame of a participant's."""
        with self.dial(headers, path) as socket:
            yield Wire(socket, name, dialect or self.dialect)

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
        headers = {"Authorization": f"Bearer {self.gateway.token(name, space)}"}
        headers |= {"MEUP-Protocol": spoken, **(more or {})}
        with self.dial(headers, f"/ws?space={space}") as socket:
            yield Wire(socket, name, spoken)


def serving(
    participants: Mapping[str, Capabilities], **options: Any
) -> AbstractContextManager[ThreadedGateway]:
    """A gateway in a thread; its options are those of :func:`config_of`."""
    return Gateway(config=config_of(participants, **options)).in_thread()


@contextmanager
def serving_site(participants: Mapping[str, Capabilities], dialect: str) -> Generator[Site]:
    with serving(participants, dialect=dialect) as gateway:
        yield Site(gateway, dialect)


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
        tokens = {name: (f"{name}-token-{space}",) for name in others}
        there = {name: participant(name, may, tokens[name]) for name, may in others.items()}
        spaces.append(SpaceConfig(space, there, dialect=dialect))
    return Config(tuple(spaces))

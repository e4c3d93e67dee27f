"""The configuration of a gateway: its spaces, participants, ports, journal; and presets.

These records are made by :mod:`~meup_agent.gateway.config_file`, by
:mod:`~meup_agent.gateway.config`, or by a program. They are also the form of the configuration
file: their fields are its keys, and the annotations of the fields say what a file may hold there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import (
    Identity,
    Tokens,
    digest_of_token,
    new_token,
    read_hash,
    read_token,
)
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.protocol.capability import Capabilities, refuse_reserved
from meup_agent.protocol.dialects import DIALECTS, spoken
from meup_agent.protocol.space.journal import MAX_BYTES, MAX_ENTRIES, MemoryJournal
from meup_agent.protocol.space.state.grants import member_capabilities
from meup_agent.protocol.space.state.rules import MAX_ID_CHARS, is_name
from meup_agent.protocol.wire.kinds import GATEWAY_NAMES
from meup_agent.protocol.wire.shown_text import NameSet

# --- the configuration of a gateway ---

DEFAULT_HOST: Final = "127.0.0.1"
"""Only this machine can reach it, until another one is configured."""

DEFAULT_PORT: Final = 8420
DEFAULT_HTTP_PORT: Final = 8421

REFERENCE_DIALECT: Final = "mew/v0.4"
"""The dialect of the space in a reference's file, if nothing else says (PROTOCOL 1)."""


# --- values ---


def _check_id(text: str) -> str:
    if not is_name(text):
        raise ConfigurationError(f"expected an id of 1 to {MAX_ID_CHARS} printable characters")
    return text


def _check_participant_id(text: str) -> str:
    if text in GATEWAY_NAMES:
        raise ConfigurationError("this name is the gateway's; expected another")
    return _check_id(text)


def _check_token(token: str) -> str:
    if not token or token.strip() != token or not token.isascii():
        raise ConfigurationError("expected ASCII characters without blanks at the ends")
    return token


class FromEnvironment(str):
    """A text of the environment: if it is a path, it begins where the program runs."""

    __slots__ = ()


def _below_folder(path: object, info: ValidationInfo) -> object:
    return Path(info.context or "", path) if type(path) is str else path


def _check_prefix(prefix: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", prefix):
        raise ConfigurationError("expected 1 to 32 ASCII letters, digits, '-' and '_'")
    return prefix


def _check_advertise(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise ConfigurationError("expected a host and a port, as in 10.0.0.1:8430")
    return address


def _check_monitoring(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("expected an address, as in http://127.0.0.1:8222")
    return address


def _check_dialect(name: str) -> str:
    if (known := spoken(name)) is None:
        raise ConfigurationError(f"expected one of {', '.join(DIALECTS)}")
    return known


def _check_command(command: object) -> Command:
    words = cast("list[object]", command) if isinstance(command, list) else [command]
    if not words or not words[0] or not all(isinstance(each, str) for each in words):
        raise ConfigurationError("expected a program, or a list of it and its arguments in quotes")
    return command if isinstance(command, str) else tuple(map(str, words))


def _compile(listed: Sequence[Mapping[str, Any]] | None, place: str = "") -> Capabilities:
    if listed is None:
        return NO_CAPABILITIES
    compiled = member_capabilities(listed, place=place)
    refuse_reserved(listed, place=place)
    return compiled


Id = Annotated[str, AfterValidator(_check_id)]
ParticipantId = Annotated[str, AfterValidator(_check_participant_id)]
Token = Annotated[str, AfterValidator(_check_token)]
TokenHash = Annotated[str, AfterValidator(read_hash)]
TokenOfFile = Annotated[str, AfterValidator(_below_folder), AfterValidator(read_token)]
Dialect = Annotated[str, AfterValidator(_check_dialect)]
PathOfFile = Annotated[Path, BeforeValidator(_below_folder)]
"""A path that begins at the folder of the file."""
PortNumber = Annotated[int, Field(ge=0, le=65535)]
"""A port; 0: any free one."""

Tracing = bool | Literal["trust"]
"""Make spans, or none; ``trust``: within the traces that proposers name."""

Word = Annotated[str, Field(coerce_numbers_to_str=True)]
"""A text of a command line or an environment, as in `PORT: 80`: only texts can be meant there."""

Command = str | tuple[str, ...]
"""A program, or a program and its arguments."""
CommandOfFile = Annotated[Command, PlainValidator(_check_command)]

if TYPE_CHECKING:
    Patterns = Capabilities
else:  # in a file, a list that is compiled
    Patterns = Annotated[tuple[dict[str, Any], ...] | None, AfterValidator(_compile)]

NO_CAPABILITIES: Final = _compile(())
"""Those of a participant of which nothing is said: in a file, it has the defaults instead."""


# --- records ---


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsTlsConfig:
    """Certificates for the way to NATS, as PEM files."""

    ca: PathOfFile | None = None  # that signed the servers'; `None`: those of the system
    certificate: PathOfFile | None = None  # of the gateway, and its key
    key: PathOfFile | None = None

    def __post_init__(self) -> None:
        """Refuse a certificate without its key.

        Raises:
            ConfigurationError: There is only one of them.
        """
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("expected 'certificate' and 'key' together, or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """``journal.nats``: the journal on NATS JetStream."""

    servers: Annotated[tuple[str, ...], Field(min_length=1)]
    # One of these says who the gateway is: a file of credentials, or a user and a password.
    credentials: PathOfFile | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: NatsTlsConfig | None = None
    # Begins the names of its streams: two clusters of gateways have two.
    prefix: Annotated[str, AfterValidator(_check_prefix)] = "meup"
    replicas: Literal[1, 3, 5] = 3  # copies of what is kept, each on another server
    # Where the gateway takes connections that came in at others, as `host:port`; a secret
    # that all have, and by which they know each other. `None`: the others listen nowhere.
    advertise: Annotated[str, AfterValidator(_check_advertise)] | None = None
    cluster_token: str | None = field(default=None, repr=False)
    cluster_token_file: TokenOfFile | None = field(default=None, repr=False)
    node: str | None = None  # the gateway's name, for people; `None`: that of its machine
    # The server's monitoring port, which tells what its clients do not see; with one replica.
    monitoring: Annotated[str, AfterValidator(_check_monitoring)] | None = None

    def __post_init__(self) -> None:
        """Refuse what says twice, or by half, who the gateway is.

        Raises:
            ConfigurationError: It does.
        """
        if self.credentials is not None and self.user is not None:
            raise ConfigurationError("expected one of 'credentials' and 'user', not both")
        if (self.advertise is None) != (not self.known_token):
            raise ConfigurationError(
                "expected 'advertise' and 'cluster_token' (or 'cluster_token_file') together, or"
                " neither"
            )
        if (self.user is None) != (self.password is None):
            raise ConfigurationError("expected 'user' and 'password' together, or neither")

    @property
    def place(self) -> str:
        """The servers, for people; without a user or password that stands in an address."""
        return "NATS at " + ", ".join(each.rpartition("@")[2] for each in self.servers)

    @property
    def known_token(self) -> str:
        """The token of the cluster; empty: there is none."""
        return self.cluster_token or self.cluster_token_file or ""


def read_nats(nats: object) -> object:
    """The keys of ``journal.nats``, also where it is the servers' addresses alone."""
    return {"servers": nats.split(",")} if isinstance(nats, str) else nats


NatsOfFile = Annotated[NatsConfig, BeforeValidator(read_nats)]
"""The journal's NATS, or the addresses of its servers alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresConfig:
    """``journal.postgres``: the journal in PostgreSQL."""

    # As libpq takes it; TLS and its files are said there, too (sslmode).
    url: str = field(repr=False)
    # Those that do not stand in the address; libpq looks into its own variables and files, too.
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: TokenOfFile | None = field(default=None, repr=False)
    # Where its tables are: each journal has one for itself.
    schema: Annotated[str, AfterValidator(_check_prefix)] = "meup"
    node: str | None = None  # the gateway's name, for people; `None`: that of its machine

    def __post_init__(self) -> None:
        """Refuse what says the password twice.

        Raises:
            ConfigurationError: It does.
        """
        if self.password is not None and self.password_file is not None:
            raise ConfigurationError("expected one of 'password' and 'password_file', not both")

    @property
    def known_password(self) -> str:
        """The password; empty: none is said beside the address."""
        return self.password or self.password_file or ""


def read_postgres(postgres: object) -> object:
    """The keys of ``journal.postgres``, also where it is the address alone."""
    return {"url": postgres} if isinstance(postgres, str) else postgres


PostgresOfFile = Annotated[PostgresConfig, BeforeValidator(read_postgres)]
"""The journal's PostgreSQL, or its address alone."""


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """The journal: its place, and how much it keeps."""

    path: PathOfFile | None = None  # an SQLite file; `None`: in memory, gone with the process
    # Of the file: `normal` outlives the process, `full` a power cut as well.
    synchronous: Literal["normal", "full"] = "normal"
    # Start where the file is not what was written, without what is lost. With `normal` a power cut
    # can do that to the newest envelopes, so it is not asked for there.
    accept_damage: bool = False
    # Seconds and bytes after which the file forgets the oldest envelopes; `None`: never.
    max_age: Annotated[float, Field(gt=0)] | None = None
    max_bytes: Annotated[int, Field(gt=0)] | None = None
    # Envelopes, and their bytes, that are kept in memory where there is no file.
    memory_entries: Annotated[int, Field(gt=0)] = MAX_ENTRIES
    memory_bytes: Annotated[int, Field(gt=0)] = MAX_BYTES
    # Streams of NATS JetStream in place of a file; a text: the addresses of its servers.
    nats: NatsOfFile | None = None
    # Tables of PostgreSQL in place of a file; a text: the address of the database.
    postgres: PostgresOfFile | None = None

    def __post_init__(self) -> None:
        """Refuse two places.

        Raises:
            ConfigurationError: There are.
        """
        if sum(place is not None for place in self._places) > 1:
            raise ConfigurationError("expected one of 'path', 'nats' and 'postgres', not several")

    @property
    def has_place(self) -> bool:
        """True if it is kept anywhere beside the memory."""
        return any(place is not None for place in self._places)

    @property
    def _places(self) -> tuple[object, ...]:
        return self.path, self.nats, self.postgres

    def open_memory(self, now: Callable[[], int]) -> MemoryJournal:
        """A journal in memory."""
        return MemoryJournal(now, max_entries=self.memory_entries, max_bytes=self.memory_bytes)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The place of HTTP: with a host or a port one of its own, else the port for WebSocket."""

    host: str | None = None
    port: PortNumber | None = None
    enabled: bool = True
    console: bool | None = None  # the page; `None`: where only this machine reaches it


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The certificate, with its chain, and its key, as PEM files; both ports use them."""

    certificate: PathOfFile
    key: PathOfFile


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTarget:
    """A service that is told when proposals wait, and when they wait no longer."""

    # Of a webhook, or one of Apprise; `push`: the browsers that subscribe in the console.
    url: str = field(repr=False)
    # That signs a webhook: `whsec_` and Base64, or a file with it, which is made if it is missing;
    # of `push`, the file of its key and its browsers.
    secret: str | None = field(default=None, repr=False)
    secret_file: PathOfFile | None = None
    space: str | None = None  # `None`: all that have the participant
    participant: str | None = None  # tell what waits for its decision; `None`: for anybody's
    after: Annotated[float, Field(ge=0, le=86_400)] = 3.0  # seconds that a proposal has waited
    settled: bool = True  # tell, too, that all of it is decided
    link: str = ""  # stands in each notice: where people decide
    allow_private: bool = False  # the service may be at an address of a private network


def _read_target(target: object) -> object:
    return {"url": target} if isinstance(target, str) else target


NotifyTargetOfFile = Annotated[NotifyTarget, BeforeValidator(_read_target)]
"""A target, or its address alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """The keys of a program; ``meup up`` starts it, a gateway alone does not."""

    command: CommandOfFile | None = None
    args: tuple[Word, ...] = ()
    env: dict[str, Word] = field(default_factory=dict[str, str], repr=False)
    cwd: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerSettings(ProgramSettings):
    """``mcp_server``: an MCP server that is bridged as the participant."""

    file: Path | None = None  # with `mcpServers`, which has it under the participant's name
    pin: bool = True  # its tools are kept as they were accepted, and changes asked about


@dataclass(frozen=True, slots=True)
class ParticipantConfig(ProgramSettings):
    """A participant that may join; each of its tokens proves its identity, and is never shown."""

    capabilities: Patterns = NO_CAPABILITIES
    tokens: tuple[Token, ...] = field(default=(), repr=False)
    dialect: Dialect | None = None  # if neither its handshake nor its join frame says
    # Further tokens: the SHA-256 of each, and the files that hold one; read, the tokens in them.
    token_hashes: tuple[TokenHash, ...] = field(default=(), repr=False)
    token_files: tuple[TokenOfFile, ...] = field(default=(), repr=False)
    # A file in which stands what it gets; with the other, it is present without a connection.
    output_log: PathOfFile | None = None
    auto_connect: bool = False
    # `None`: what our own forms say is started, a command in a list and a server of a file. The
    # reference, whose forms the others are, starts what says `true` alone.
    auto_start: bool | None = None
    mcp_server: McpServerSettings | None = None

    @property
    def known_tokens(self) -> tuple[str, ...]:
        """Its tokens; not those of which there is a hash alone."""
        return (*self.tokens, *self.token_files)

    @property
    def digests(self) -> frozenset[bytes]:
        """The SHA-256 of each of its tokens; none: it cannot join."""
        known = map(digest_of_token, self.known_tokens)
        return frozenset((*known, *map(bytes.fromhex, self.token_hashes)))

    @property
    def has_token(self) -> bool:
        """True if there is a token with which it can join."""
        return bool(self.known_tokens or self.token_hashes)

    @property
    def starts(self) -> bool:
        """True if ``meup up`` has something to start for it, and it is to be started."""
        if self.auto_start is not None:
            return self.auto_start and (self.command or self.mcp_server) is not None
        server = self.mcp_server
        return isinstance(self.command, tuple) or (server is not None and server.file is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """The keys of a space besides its id and its participants, the same in every form of a file."""

    name: str = ""  # for people
    dialect: Dialect | None = None  # of its members, if nothing else says (PROTOCOL 1)
    announce_withdrawals: bool = False  # every member is told of each valid withdrawal


@dataclass(frozen=True, slots=True)
class SpaceConfig(SpaceSettings):
    """A space: the id by which members join, and its participants by theirs."""

    id: str
    participants: Mapping[str, ParticipantConfig]
    # Nothing says which of the two published versions its members speak: they may speak either.
    takes_published: bool = False
    state: Path | None = None  # `.mew` of a space in the reference's form, with its tokens

    def __post_init__(self) -> None:
        """Refuse names that people would take for each other, as the gateway refuses invitations.

        Raises:
            ConfigurationError: Two participants' names look alike, or one's letters do.
        """
        names = NameSet()
        for name in self.participants:
            if problem := names.problem(name):
                raise ConfigurationError(f"participants of space {self.id}: {problem}")
            names.add(name)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration."""

    spaces: tuple[SpaceConfig, ...]  # each id once
    host: str = DEFAULT_HOST
    port: PortNumber = DEFAULT_PORT
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    journal: JournalConfig = field(default_factory=JournalConfig)
    http: HttpConfig | None = None  # `None`: at the one port, where only this machine reaches it
    tls: TlsConfig | None = None  # `None`: no encryption
    insecure: bool = False  # no encryption, even where others than this machine can listen
    tracing: Tracing = False  # OpenTelemetry spans and metrics; `trust`: in the proposers' traces
    history: Path | None = None  # a folder in which what passes is written; `None`: none
    notify: tuple[NotifyTarget, ...] = ()  # the services that are told of what waits
    written_limits: GatewayLimits | None = None  # where fewer files than these need can be open

    def space(self, space_id: str) -> SpaceConfig | None:
        """A space by its id."""
        return next((space for space in self.spaces if space.id == space_id), None)

    def tokens(self) -> Tokens:
        """Every token, ready to ask.

        Raises:
            ConfigurationError: Two participants have the same token.
        """
        entries = self.entries()
        return Tokens((digest, who) for who, entry in entries for digest in entry.digests)

    def entries(self) -> Iterator[tuple[Identity, ParticipantConfig]]:
        """The participants of all spaces."""
        for space in self.spaces:
            for name, entry in space.participants.items():
                yield Identity(space.id, name), entry

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of a port for HTTP alone; ``None``: there is none."""
        http = self.http
        if http is None or not http.enabled or (http.host is None and http.port is None):
            return None
        host = DEFAULT_HOST if http.host is None else http.host
        return host, DEFAULT_HTTP_PORT if http.port is None else http.port


def participant(
    participant_id: str,
    capabilities: Iterable[Mapping[str, Any]],
    tokens: Iterable[str],
    *,
    dialect: str | None = None,
) -> ParticipantConfig:
    """A participant of a program's own configuration, checked as one in a file is.

    Raises:
        ConfigurationError: Its id cannot be one, or a token is wrong.
        InvalidPattern: A capability does not compile, or names what no participant is granted.
    """
    place = f"participants.{participant_id}"
    try:
        _check_participant_id(participant_id)
        checked = tuple(map(_check_token, tokens))
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    compiled = _compile(tuple(capabilities), f"{place}.capabilities")
    return ParticipantConfig(compiled, checked, dialect)


# --- the forms: what a file has besides the records ---


@dataclass(frozen=True)
class GatewaySection(GatewayLimits):
    """``gateway``: the limits, and the address."""

    host: str = DEFAULT_HOST
    port: PortNumber = DEFAULT_PORT
    insecure: bool = False
    tracing: Tracing = False


@dataclass(frozen=True)
class Defaults:
    """``defaults``, of a file or of a space in it."""

    capabilities: Patterns = NO_CAPABILITIES


@dataclass(frozen=True)
class Sections:
    """The keys of either file besides its spaces."""

    # Of the records within, too: a key that none of them has is an error.
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    defaults: Defaults = field(default_factory=Defaults)
    gateway: GatewaySection = field(default_factory=GatewaySection)
    journal: JournalConfig = field(default_factory=JournalConfig)
    http: HttpConfig | None = None
    tls: TlsConfig | None = None
    notify: tuple[NotifyTargetOfFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SpaceForm(SpaceSettings):
    """``spaces.<id>``."""

    participants: dict[ParticipantId, ParticipantConfig]
    defaults: Defaults | None = None

    def read(self, name: str, defaults: Defaults, starts: bool | None = None) -> SpaceConfig:
        """The space; its participants of which nothing is said may send what the defaults say.

        ``starts``: True if an MCP server is started unless the file says otherwise.
        """
        may = (self.defaults or defaults).capabilities
        participants = {
            each: replace(
                it,
                capabilities=may if it.capabilities is NO_CAPABILITIES else it.capabilities,
                auto_start=starts
                if it.mcp_server is not None and it.auto_start is None
                else it.auto_start,
            )
            for each, it in self.participants.items()
        }
        return SpaceConfig(name, participants, **values_of(SpaceSettings, self))


@dataclass(frozen=True, kw_only=True)
class ReferenceSpaceForm(SpaceSettings):
    """``space`` of the reference's file."""

    id: Id


@dataclass(frozen=True, kw_only=True)
class OurFile(Sections):
    """A file with a key ``spaces``."""

    spaces: Annotated[dict[Id, SpaceForm], Field(min_length=1)]

    def read(self) -> tuple[SpaceConfig, ...]:
        """Its spaces; an MCP server in them is started unless they say otherwise."""
        return tuple(form.read(name, self.defaults, True) for name, form in self.spaces.items())


@dataclass(frozen=True, kw_only=True)
class ReferenceFile(Sections):
    """A file with the keys ``space`` and ``participants``, as the reference's ``space.yaml``."""

    space: ReferenceSpaceForm
    participants: dict[ParticipantId, ParticipantConfig]

    def read(self) -> tuple[SpaceConfig, ...]:
        """Its one space."""
        form = SpaceForm(participants=self.participants, **values_of(SpaceSettings, self.space))
        space = form.read(self.space.id, self.defaults)
        if space.dialect is None:
            space = replace(space, dialect=REFERENCE_DIALECT, takes_published=True)
        return (space,)


def values_of(form: type[Any], record: object) -> dict[str, Any]:
    """The values that a record has for the keys of a form, which are among its own."""
    return {each.name: getattr(record, each.name) for each in fields(form)}


SECTIONS: Final = {
    "gateway": GatewaySection,
    "journal": JournalConfig,
    "http": HttpConfig,
    "tls": TlsConfig,
}


# --- a file that is read again ---


class ConfigChange(NamedTuple):
    """The differences between the configuration of a running gateway and one read again."""

    config: Config  # that it goes on with: the old one, with what can take effect
    added: tuple[Identity, ...]
    removed: tuple[Identity, ...]
    changed: tuple[Identity, ...]  # participants with other tokens, capabilities or dialects
    waiting: tuple[str, ...]  # keys that take effect at the next start

    def __str__(self) -> str:
        """The differences in one sentence."""
        told = [
            f"{word} {', '.join(each.participant for each in listed)}"
            for word, listed in (
                ("added", self.added),
                ("removed", self.removed),
                ("changed", self.changed),
            )
            if listed
        ]
        said = "; ".join(told) or "no participant has changed"
        if self.waiting:
            said += f"; at the next start only: {', '.join(self.waiting)}"
        return said


_NEEDS_START: Final = ("host", "port", "insecure", "tracing", "history", "notify")
_OF_A_START: Final = ("output_log", "auto_connect")
_OF_A_SPACE: Final = ("announce_withdrawals", "takes_published")


def compare_configs(running: Config, read: Config) -> ConfigChange:
    """The changes from the configuration of a running gateway to one that was read again.

    Participants, their tokens, capabilities and dialects, and the files of the certificate, take
    effect at once; all else does at the next start.
    """
    waiting = [
        key if key in ("history", "notify") else f"gateway.{key}"
        for key in _NEEDS_START
        if getattr(running, key) != getattr(read, key)
    ]
    for section in ("limits", "journal", "http"):
        old, new = getattr(running, section), getattr(read, section)
        place = "gateway" if section == "limits" else section
        if old is None or new is None:
            waiting += [] if old is new else [place]
        else:
            waiting += [f"{place}.{key}" for key in _differing(old, new)]
    has_tls = running.tls is not None and read.tls is not None
    waiting += [] if has_tls or running.tls is read.tls else ["tls"]
    spaces: list[SpaceConfig] = []
    for old_space in running.spaces:
        new_space = read.space(old_space.id)
        if new_space is None:
            waiting.append(f"spaces.{old_space.id}")
        else:
            kept = {key: getattr(old_space, key) for key in _OF_A_SPACE}
            waiting += [
                f"spaces.{old_space.id}.{'dialect' if key == 'takes_published' else key}"
                for key in _differing(old_space, new_space)
                if key in kept
            ]
            new_space = replace(new_space, **kept)
        spaces.append(new_space or old_space)
    waiting += [f"spaces.{each.id}" for each in read.spaces if running.space(each.id) is None]
    config = replace(running, spaces=tuple(spaces), tls=read.tls if has_tls else running.tls)
    before, after = dict(running.entries()), dict(config.entries())
    both = [each for each in after if each in before]
    for each in both:
        waiting += [
            f"participants.{each.participant}.{key}"
            for key in _differing(before[each], after[each])
            if key in _OF_A_START
        ]
    return ConfigChange(
        config,
        tuple(each for each in after if each not in before),
        tuple(each for each in before if each not in after),
        tuple(each for each in both if _admission(before[each]) != _admission(after[each])),
        tuple(waiting),
    )


def _differing(old: Any, new: Any) -> list[str]:
    return [each.name for each in fields(old) if getattr(old, each.name) != getattr(new, each.name)]


def _admission(entry: ParticipantConfig) -> tuple[object, ...]:
    """The parts of a participant's entry by which it is admitted, to be compared."""
    return entry.capabilities.patterns, entry.digests, entry.dialect


# --- configurations without a file ---
# One space for a program, and one to try things out.

DEV_SPACE: Final = "demo"
"""The id of the one space."""

ROLES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    # May not call a tool, so it proposes; may ask what there is, and read what changes nothing.
    "proposer": (
        {"kind": "mcp/proposal"},
        {"kind": "mcp/withdraw"},
        {"kind": "mcp/request", "payload": {"method": "initialize"}},
        {"kind": "mcp/request", "payload": {"method": "ping"}},
        {
            "kind": "mcp/request",
            "payload": {"method": ["*/list", "resources/**", "prompts/get", "completion/complete"]},
        },
        {"kind": "chat"},
    ),
    # Reviews proposals, and carries out what it approves by requests of its own.
    "fulfiller": (
        {"kind": "mcp/request"},
        {"kind": "mcp/response"},
        {"kind": "mcp/reject"},
        {"kind": "mcp/proposal"},
        {"kind": "mcp/withdraw"},
        {"kind": "chat"},
        {"kind": "participant/request-status"},
    ),
    # Answers requests, which needs no capability, and may show its work and say something about it.
    "tools": (
        {"kind": "mcp/response"},
        {"kind": "chat"},
        {"kind": "reasoning/*"},
        {"kind": "stream/*"},
    ),
    # Sees everything and says nothing.
    "observer": (),
}
"""The four roles, with the capabilities that each needs."""

GUESTS: Final = ("guest1", "guest2", "guest3")
"""Participants for the user's own agents: they may do what the proposer may."""

PARTICIPANTS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    **ROLES,
    # No participant can grant what it lacks, so the administrator may do everything.
    "admin": ({"kind": "*"},),
    **dict.fromkeys(GUESTS, ROLES["proposer"]),
}
"""The participants of a ``--dev`` gateway, with their capabilities."""


Participants = Mapping[str, Iterable[Mapping[str, Any]]]
"""Capabilities by participant."""


def one_space_config(
    space: str,
    participants: Participants,
    limits: GatewayLimits | None = None,
    *,
    tokens: Mapping[str, str] | None = None,
) -> Config:
    """A configuration of one space; a participant without a token in ``tokens`` gets a new one."""
    known = tokens or {}
    entries = {
        name: participant(name, capabilities, (known.get(name) or new_token(),))
        for name, capabilities in participants.items()
    }
    return Config((SpaceConfig(space, entries),), limits=limits or GatewayLimits())


def dev_config(tokens: Mapping[str, str] | None = None, space: str = DEV_SPACE) -> Config:
    """A configuration with :data:`PARTICIPANTS`; see :func:`one_space_config`."""
    return one_space_config(space, PARTICIPANTS, tokens=tokens)


def first_token(config: Config, participant_id: str, space: str | None = None) -> str:
    """The first token of a participant; a :exc:`KeyError` where it has none."""
    found = config.spaces[0] if space is None else config.space(space)
    entry = found.participants.get(participant_id) if found else None
    if entry is None or not entry.tokens:
        raise KeyError(f"no token of {participant_id!r}; name a participant of the gateway")
    return entry.tokens[0]

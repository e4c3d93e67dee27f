"""Reads a gateway's configuration file: YAML, in our own form or the reference's.

::

    spaces:
      demo:
        participants:
          alice:
            token_files: [alice.token]
            capabilities: [{kind: chat}]
    gateway: {host: 0.0.0.0, port: 8420, max_connections: 100}
    tls: {certificate: gateway.pem, key: gateway.key}
    journal: {path: journal.db}

A file with ``space`` and ``participants`` in place of ``spaces`` is the reference's ``space.yaml``:
its one space speaks ``mew/v0.4`` unless it says otherwise (PROTOCOL 1).

What stands under ``gateway``, ``tls``, ``journal`` and ``http`` can also be set in the environment,
as ``MEUP_GATEWAY_PORT``, ``MEUP_GATEWAY_JOURNAL_PATH`` and so on; the environment wins.

The environment is laid over what YAML holds, the whole is checked against the forms once, and the
first problem becomes one sentence in :func:`_describe_problem`, the only place that words one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from annotated_types import MinLen
from pydantic import ConfigDict, TypeAdapter, ValidationError

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.config import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    NO_CAPABILITIES,
    Config,
    HttpConfig,
    Id,
    JournalConfig,
    ParticipantConfig,
    ParticipantId,
    Patterns,
    PortNumber,
    SpaceConfig,
    SpaceSettings,
    TlsConfig,
)
from meup_agent.gateway.limits import LIMIT_ROWS, GatewayLimits
from meup_agent.gateway.logs import log

T = TypeVar("T")

REFERENCE_DIALECT: Final = "mew/v0.4"
"""The dialect of the space in a reference's file, if nothing else says (PROTOCOL 1)."""

IGNORED_OF_A_SPACE: Final = {"description", "default_participant", "ui_theme"}
IGNORED_OF_A_PARTICIPANT: Final = {
    *("args", "auto_connect", "auto_start", "bridge_config", "command", "cwd", "env", "fifo"),
    *("mcp_server", "output_log", "type"),
}
"""Keys of the reference's file about starting participants: this gateway starts none. They are
taken with a warning; any other unknown key is an error, since it may be a typing mistake."""


# --- the forms: the records of the configuration, and what a file has besides ---


@dataclass(frozen=True)
class GatewaySection(GatewayLimits):
    """``gateway``: the limits, and the address."""

    host: str = DEFAULT_HOST
    port: PortNumber = DEFAULT_PORT
    insecure: bool = False

    def __post_init__(self) -> None:
        """Leave the bounds of the limits to the record that the gateway uses."""

    def over(self, config: Config) -> Config:
        """A configuration with this section."""
        try:
            limits = GatewayLimits(**{row.name: getattr(self, row.name) for row in LIMIT_ROWS})
        except ConfigurationError as error:
            raise ConfigurationError(f"gateway.{error}") from None
        return replace(
            config, host=self.host, port=self.port, insecure=self.insecure, limits=limits
        )


@dataclass(frozen=True)
class Defaults:
    """``defaults``, of a file or of a space in it."""

    capabilities: Patterns = NO_CAPABILITIES


@dataclass(frozen=True)
class Sections:
    """The keys of either file besides its spaces."""

    # Of the records within, too: a key that none of them has is an error.
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    defaults: Defaults = field(default_factory=Defaults)
    gateway: GatewaySection = field(default_factory=GatewaySection)
    journal: JournalConfig = field(default_factory=JournalConfig)
    http: HttpConfig | None = None
    tls: TlsConfig | None = None

    def over(self, config: Config) -> Config:
        """A configuration with these sections, checked as a whole."""
        config = self.gateway.over(
            replace(config, journal=self.journal, http=self.http, tls=self.tls)
        )
        config.check()
        config.tokens()
        return config


@dataclass(frozen=True, kw_only=True)
class SpaceForm(SpaceSettings):
    """``spaces.<id>``."""

    participants: dict[ParticipantId, ParticipantConfig]
    defaults: Defaults | None = None

    def read(self, space_id: str, defaults: Defaults) -> SpaceConfig:
        """The space; a participant of which nothing is said has the default capabilities."""
        may = (self.defaults or defaults).capabilities
        participants = {
            name: replace(entry, capabilities=may)
            if entry.capabilities is NO_CAPABILITIES
            else entry
            for name, entry in self.participants.items()
        }
        return SpaceConfig(space_id, participants, **_settings_of(self))


@dataclass(frozen=True, kw_only=True)
class ReferenceSpaceForm(SpaceSettings):
    """``space`` of the reference's file."""

    id: Id


def _settings_of(space: SpaceSettings) -> dict[str, Any]:
    return {each.name: getattr(space, each.name) for each in fields(SpaceSettings)}


@dataclass(frozen=True, kw_only=True)
class OurFile(Sections):
    """A file with a key ``spaces``."""

    spaces: Annotated[dict[Id, SpaceForm], MinLen(1)]

    def read(self) -> tuple[SpaceConfig, ...]:
        """Its spaces."""
        return tuple(form.read(name, self.defaults) for name, form in self.spaces.items())


@dataclass(frozen=True, kw_only=True)
class ReferenceFile(Sections):
    """A file with the keys ``space`` and ``participants``, as the reference's ``space.yaml``."""

    space: ReferenceSpaceForm
    participants: dict[ParticipantId, ParticipantConfig]

    def read(self) -> tuple[SpaceConfig, ...]:
        """Its one space."""
        settings = _settings_of(self.space)
        settings["dialect"] = self.space.dialect or REFERENCE_DIALECT
        form = SpaceForm(participants=self.participants, **settings)
        return (form.read(self.space.id, self.defaults),)


# --- the settings: what the environment can say, too ---

ENVIRONMENT_PREFIX: Final = "MEUP_GATEWAY_"

SECTIONS: Final = {
    "gateway": GatewaySection,
    "journal": JournalConfig,
    "http": HttpConfig,
    "tls": TlsConfig,
}

SETTINGS: Final = {
    each.name if section == "gateway" else f"{section}_{each.name}": (section, each.name)
    for section, record in SECTIONS.items()
    for each in fields(record)
}
"""The section and key of a setting, by its name in the environment."""

_PATHS: Final = ("journal_path", "tls_certificate", "tls_key")


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + setting.upper()


def _with_environment(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A file's keys, with paths that begin at its folder, and the environment over them."""
    for variable in os.environ:
        setting = variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower()
        if variable.upper().startswith(ENVIRONMENT_PREFIX) and setting not in SETTINGS:
            advice = _suggest(setting, SETTINGS, variable_of)
            log.warning("%s means nothing to a gateway; %s", variable, advice)
    environment = {variable.upper(): value for variable, value in os.environ.items() if value}
    # A section of which only the key is given, as `http:`, is empty.
    said: dict[str, Any] = {
        key: {} if key in SECTIONS and value is None else value for key, value in raw.items()
    }
    for setting, (section, key) in SETTINGS.items():
        if not isinstance(said.get(section, {}), dict):
            continue  # the form refuses it
        entries = _object(said.get(section))
        value = entries.get(key)
        if variable_of(setting) in environment:
            said[section] = {**entries, key: environment[variable_of(setting)]}
        elif setting in _PATHS and isinstance(value, str) and value:
            said[section] = {**entries, key: folder / value}
    return said


# --- the file ---


def load_config(path: str | Path) -> Config:
    """Read a configuration file, and what the environment says over it.

    Paths in the file begin at the file's own folder, those in the environment where the program
    runs.

    Raises:
        ConfigurationError: The file cannot be read, or something in it or in the environment is
            wrong; the message says which file, which key, and what was expected.
    """
    path = Path(path)
    raw = _read(path)
    if "space" in raw and "spaces" in raw:
        raise ConfigurationError(f"{path}: expected one of the keys 'space' and 'spaces', not both")
    form: type[OurFile | ReferenceFile] = OurFile if "spaces" in raw else ReferenceFile
    if form is ReferenceFile:
        _drop_ignored(raw.get("space"), IGNORED_OF_A_SPACE, f"{path}: space")
        for name, entry in _object(raw.get("participants")).items():
            _drop_ignored(entry, IGNORED_OF_A_PARTICIPANT, f"{path}: participants.{name}")
    try:
        file = _check(form, raw, path.parent)
        config = file.over(Config(file.read()))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    for space in config.spaces:
        for name, entry in space.participants.items():
            if not (entry.tokens or entry.token_hashes or entry.token_files):
                log.warning("%s: %s in space %s has no token; it cannot join", path, name, space.id)
    return config


def environment_over(config: Config) -> Config:
    """A configuration, and what the environment says over it.

    Raises:
        ConfigurationError: Something in the environment is wrong.
    """
    address = {"host": config.host, "port": config.port, "insecure": config.insecure}
    records = {name: getattr(config, name) for name in SECTIONS if name != "gateway"}
    raw = {name: asdict(record) for name, record in records.items() if record is not None}
    return _check(Sections, {**raw, "gateway": asdict(config.limits) | address}).over(config)


def _check(form: type[T], raw: Mapping[str, Any], folder: Path = Path()) -> T:
    """The file, and the environment over it, in their form.

    Raises:
        ConfigurationError: Something is wrong in either.
    """
    try:
        return TypeAdapter(form).validate_python(_with_environment(raw, folder), context=folder)
    except ValidationError as error:
        raise ConfigurationError(_describe_problem(error, form)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        raw: object = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({(error.strerror or 'unknown reason').lower()});"
            " give the path of a gateway's YAML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: expected YAML in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = str(error.problem)
        # "expected …, but found …" in a sentence that says itself what was expected.
        found = problem.partition(", but ")[2] if problem.startswith("expected ") else ""
        raise ConfigurationError(f"{path}{where}: expected YAML, but {found or problem}") from None
    except yaml.YAMLError:
        raise ConfigurationError(f"{path}: expected YAML in printable characters") from None
    except ValueError as error:
        # A word that has the form of a date, and is none: 2024-13-45.
        raise ConfigurationError(
            f"{path}: a value looks like a date and is none ({error}); put it in quotes"
        ) from None
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{path}: expected the key 'spaces'")
    return cast("dict[str, Any]", raw)


def _object(value: object) -> dict[str, Any]:
    """The value if it is an object; anything else is reported when it is checked."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _drop_ignored(entry: object, ignored: set[str], place: str) -> None:
    """Take out what other gateways' files say and this gateway does not use."""
    fields = _object(entry)
    found = sorted(ignored & fields.keys())
    for key in found:
        del fields[key]
    if found:
        log.warning("%s: ignored %s, which this gateway has no use for", place, ", ".join(found))


class _Loader(yaml.SafeLoader):
    """YAML without surprises: a key that stands twice is an error, not a loss of the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                key = (key_node.tag, key_node.value)
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key[1]!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


# --- the sentence about a wrong key ---

_UNKNOWN: Final = "unexpected_keyword_argument"

_EXPECTED: Final = {
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a text; put it in quotes",
    "invalid_key": "a text; put it in quotes",
    "path_type": "a path",
    "too_short": "at least one space",
}
"""The expected type, in the words of a file, not of the types behind it."""


def _describe_problem(error: ValidationError, form: type[Any]) -> str:
    """The first problem: its key and what was expected. The value stays out, it may be secret.

    Of several problems an unknown key is told first, since it may be what is missing elsewhere,
    misspelt.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = next((each for each in problems if each["type"] == _UNKNOWN), problems[0])
    kind, location = problem["type"], problem["loc"]
    key = _key((*location, "[key]") if kind == "invalid_key" else location)
    if kind == _UNKNOWN:
        return f"{key}: unknown key; {_suggest(str(location[-1]), _keys_at(form, location))}"
    message = problem["msg"].replace("Input should be", "expected").removeprefix("Value error, ")
    said = "is missing" if kind == "missing" else message
    if kind in _EXPECTED:
        said = f"expected {_EXPECTED[kind]}"
    for setting, place in SETTINGS.items():
        if place == location:
            said += f" (or {variable_of(setting)} in the environment)"
    # A capability that does not compile says itself where in the list it stands.
    return f"{key}{said}" if said.startswith("[") else f"{key}: {said}"


def _suggest(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """Advice about a name that means nothing, from names that do, as these are to be written."""
    near = get_close_matches(name, tuple(known), 1)
    return f"did you mean {written(near[0])}?" if near else "remove it, or correct its spelling"


def _key(location: tuple[int | str, ...]) -> str:
    """A place in a file: ``participants.alice.tokens[0]``."""
    # Pydantic ends the place so where the key itself is wrong, which may be a number.
    parts = (*location[:-2], str(location[-2])) if location[-1:] == ("[key]",) else location
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts
    ).removeprefix(".")


def _keys_at(form: type[Any], location: tuple[int | str, ...]) -> list[str]:
    """The keys that the mapping at a place can have."""
    parts = iter(location[:-1])
    for part in parts:
        annotation = get_type_hints(form)[str(part)]
        if get_origin(annotation) is dict:
            next(parts)
        form = next(_forms_in(annotation))
    return [each.name for each in fields(form)]


def _forms_in(annotation: Any) -> Iterator[type[Any]]:
    if is_dataclass(annotation) and isinstance(annotation, type):
        yield annotation
    for argument in get_args(annotation):
        yield from _forms_in(argument)

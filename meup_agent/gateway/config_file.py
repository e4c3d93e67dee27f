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
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, cast

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from meup_agent.errors import ConfigurationError, InvalidPattern
from meup_agent.gateway.auth import read_hash
from meup_agent.gateway.config import (
    Config,
    HttpConfig,
    ParticipantConfig,
    SpaceConfig,
    participant,
)
from meup_agent.gateway.logs import log
from meup_agent.gateway.settings import describe_problem, read_settings
from meup_agent.protocol.dialects import DIALECTS, spoken
from meup_agent.protocol.space.inbound import MAX_ID_CHARS, is_name

REFERENCE_DIALECT: Final = "mew/v0.4"
"""The dialect of the space in a reference's file, if nothing else says (PROTOCOL 1)."""

MAX_TOKEN_FILE_BYTES: Final = 4_096
"""Bytes of a file with a token: a wrong path may lead to a large one."""

IGNORED_OF_A_SPACE: Final = {"description", "default_participant", "ui_theme"}
IGNORED_OF_A_PARTICIPANT: Final = {
    *("args", "auto_connect", "auto_start", "bridge_config", "command", "cwd", "env", "fifo"),
    *("mcp_server", "output_log", "type"),
}
"""Keys of the reference's file about starting participants: this gateway starts none. They are
taken with a warning; any other unknown key is an error, since it may be a typing mistake."""


# --- the forms ---


def _known_dialect(name: str) -> str:
    known = spoken(name)
    if known is None:
        raise ValueError(f"expected one of {', '.join(DIALECTS)}")
    return known


def _valid_id(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"expected an id of 1 to {MAX_ID_CHARS} printable characters")
    return text


Dialect = Annotated[str, AfterValidator(_known_dialect)]
SpaceId = Annotated[str, AfterValidator(_valid_id)]


class Form(BaseModel):
    """A mapping of a configuration file; a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ParticipantForm(Form):
    """``participants.<id>``."""

    tokens: tuple[SecretStr, ...] = ()
    token_hashes: tuple[str, ...] = ()
    token_files: tuple[Path, ...] = ()
    capabilities: tuple[dict[str, Any], ...] | None = None
    dialect: Dialect | None = None


class DefaultsForm(Form):
    """``defaults``."""

    capabilities: tuple[dict[str, Any], ...] = ()


class SpaceHeadForm(Form):
    """The keys of a space, wherever its participants stand."""

    name: str = ""
    dialect: Dialect | None = None
    announce_withdrawals: bool = False


class SpaceForm(SpaceHeadForm):
    """``spaces.<id>``."""

    participants: dict[str, ParticipantForm]
    defaults: DefaultsForm | None = None


class ReferenceSpaceForm(SpaceHeadForm):
    """``space`` of the reference's file."""

    id: SpaceId


class SettingsForm(Form):
    """The keys of either file besides its spaces."""

    defaults: DefaultsForm = DefaultsForm()
    gateway: dict[str, Any] = Field(default_factory=dict[str, Any])
    journal: dict[str, Any] = Field(default_factory=dict[str, Any])
    http: dict[str, Any] | None = None
    tls: dict[str, Any] = Field(default_factory=dict[str, Any])


class OurFile(SettingsForm):
    """A file with a key ``spaces``."""

    spaces: Annotated[dict[SpaceId, SpaceForm], Field(min_length=1)]


class ReferenceFile(SettingsForm):
    """A file with the keys ``space`` and ``participants``, as the reference's ``space.yaml``."""

    space: ReferenceSpaceForm
    participants: dict[str, ParticipantForm]


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
    form = OurFile if "spaces" in raw else ReferenceFile
    try:
        if form is ReferenceFile:
            _drop_ignored(raw.get("space"), IGNORED_OF_A_SPACE, f"{path}: space")
            for name, entry in _object(raw.get("participants")).items():
                _drop_ignored(entry, IGNORED_OF_A_PARTICIPANT, f"{path}: participants.{name}")
        file = form.model_validate(raw)
        return _with_sections(path, file, _spaces(path, file))
    except ValidationError as error:
        key, problem = describe_problem(error, form)
        raise ConfigurationError(f"{path}: {key}: {problem}") from None
    except (ConfigurationError, InvalidPattern) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _spaces(path: Path, file: OurFile | ReferenceFile) -> tuple[SpaceConfig, ...]:
    if isinstance(file, ReferenceFile):
        people = _participants(path, file.participants, file.defaults, "participants")
        return (_space(file.space.id, file.space, people, REFERENCE_DIALECT),)
    found: list[SpaceConfig] = []
    for name, form in file.spaces.items():
        defaults, place = form.defaults or file.defaults, f"spaces.{name}.participants"
        found.append(_space(name, form, _participants(path, form.participants, defaults, place)))
    return tuple(found)


def _space(
    space_id: str,
    form: SpaceHeadForm,
    participants: Mapping[str, ParticipantConfig],
    dialect: str | None = None,
) -> SpaceConfig:
    said = form.dialect or dialect
    return SpaceConfig(space_id, participants, form.name, said, form.announce_withdrawals)


def _participants(
    path: Path, forms: Mapping[str, ParticipantForm], defaults: DefaultsForm, place: str
) -> dict[str, ParticipantConfig]:
    participants: dict[str, ParticipantConfig] = {}
    for name, form in forms.items():
        here = f"{place}.{name}"
        if not (form.tokens or form.token_hashes or form.token_files):
            log.warning("%s: %s has no token; nobody can join as it", path, here)
        tokens = [token.get_secret_value() for token in form.tokens]
        tokens += [
            _token_in(path.parent / file, f"{here}.token_files") for file in form.token_files
        ]
        participants[name] = participant(
            name,
            defaults.capabilities if form.capabilities is None else form.capabilities,
            tokens,
            dialect=form.dialect,
            token_hashes=[read_hash(text, f"{here}.token_hashes") for text in form.token_hashes],
            place=here,
        )
    return participants


def _with_sections(path: Path, file: SettingsForm, spaces: tuple[SpaceConfig, ...]) -> Config:
    """The whole configuration: the spaces, and the settings of the file and the environment."""
    config = Config(spaces, http=HttpConfig() if "http" in file.model_fields_set else None)
    sections = {
        "journal": _from_here(path, file.journal, "path"),
        "http": file.http or {},
        "tls": _from_here(path, file.tls, "certificate", "key"),
    }
    config = read_settings(config, file.gateway, sections)
    config.check()
    config.tokens()
    return config


def _from_here(path: Path, section: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A section of the file, with its paths from the file's folder on."""
    here = dict(section)
    for key in keys:
        value = here.get(key)
        if isinstance(value, str) and value:
            here[key] = path.parent / value
    return here


def _token_in(path: Path, place: str) -> str:
    """The token that a file holds, alone, with or without a line end."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        why = (error.strerror or "unknown reason").lower()
        raise ConfigurationError(f"{place}: {path} cannot be read ({why})") from None
    lines = content.split()
    if len(content) > MAX_TOKEN_FILE_BYTES or len(lines) != 1 or not content.isascii():
        raise ConfigurationError(f"{place}: {path} must hold a token and nothing else")
    return lines[0].decode()


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

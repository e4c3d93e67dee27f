"""Reads a gateway's configuration file: YAML, in our own form or the reference's.

A file with ``space`` and ``participants`` in place of ``spaces`` is the reference's ``space.yaml``:
its one space speaks ``mew/v0.4`` unless it says otherwise (PROTOCOL 1). What stands under
``gateway``, ``journal``, ``http`` and ``tls`` can also be set in the environment, as
``MEUP_GATEWAY_PORT``, ``MEUP_GATEWAY_JOURNAL_PATH`` and so on; the environment wins.

The environment is laid over what YAML holds, the whole is checked against the forms once, and the
first problem becomes one sentence in :func:`_describe_problem`, the only place that words one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from meup_agent.atomic_file import write_new_file
from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.gateway.auth import new_token, read_token, renew_token
from meup_agent.gateway.config import (
    SECTIONS,
    Config,
    Defaults,
    FromEnvironment,
    OurFile,
    ParticipantConfig,
    ReferenceFile,
    ReferenceSpaceForm,
    Sections,
    read_nats,
    read_postgres,
    values_of,
)
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log
from meup_agent.protocol.capability import is_reserved_kind
from meup_agent.protocol.wire.payloads import as_object
from meup_agent.strict_yaml import parse_yaml

S = TypeVar("S", bound="Sections")

# --- the environment ---

ENVIRONMENT_PREFIX: Final = "MEUP_GATEWAY_"

SETTINGS: Final = {
    each.name if section == "gateway" else f"{section}_{each.name}": (section, each.name)
    for section, form in SECTIONS.items()
    for each in fields(form)
} | {
    # What differs from machine to machine, so that the file need not.
    "journal_nats_advertise": ("journal", "nats.advertise"),
    "journal_nats_node": ("journal", "nats.node"),
    "journal_postgres_node": ("journal", "postgres.node"),
    # Secrets, which need not stand in the file.
    "journal_postgres_password": ("journal", "postgres.password"),
}
"""The section and key of a setting, by its name in the environment."""

_KEYS_OF_CONFIG: Final = ("host", "port", "insecure", "tracing")
_RECORDS: Final = ("journal", "http", "tls")


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + setting.upper()


def _with_environment(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A file's keys, and the environment over them."""
    # A section of which only the key is given, as `http:`, is empty.
    empty = {key: dict[str, Any]() for key in SECTIONS if key in raw and raw[key] is None}
    laid = {**raw, **empty}
    for variable, value in os.environ.items():
        if not variable.upper().startswith(ENVIRONMENT_PREFIX):
            continue
        setting = variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower()
        section, key = SETTINGS.get(setting, ("", ""))
        if not key:
            advice = _suggest(setting, SETTINGS, variable_of)
            log.warning("%s means nothing to a gateway; %s", variable, advice)
        elif value and isinstance(laid.setdefault(section, {}), dict):  # else the form refuses it
            laid[section] = _with_key(laid[section], key, FromEnvironment(value))
    return laid


def _with_key(section: Mapping[str, Any], key: str, value: str) -> dict[str, Any]:
    """A section with another value, of a key in one of its keys perhaps: ``nats.node``."""
    outer, _, inner = key.partition(".")
    if not inner:
        return {**section, key: value}
    within: Any = section.get(outer) or {}
    # The addresses alone, as one text, are keys, too.
    keys = read_nats(within) if outer == "nats" else read_postgres(within)
    return {**section, outer: {**keys, inner: value} if isinstance(keys, dict) else keys}


# --- the file ---


def load_config(
    path: str | Path, *, needs_tokens: bool = True, make_tokens: MakeTokens = "never"
) -> Config:
    """Read a configuration file, and what the environment says over it.

    Paths in the file begin at the file's own folder, those in the environment where the program
    runs. With ``needs_tokens`` the log warns of participants that have none. ``make_tokens`` says
    when those of the reference's file get one in ``.mew/tokens``.

    Raises:
        ConfigurationError: The file cannot be read, or something in it or in the environment is
            wrong; the message says which file, which key, and what was expected.
    """
    path = Path(path)
    raw = _read(path)
    base = base_of(path)
    try:
        if {"space", "spaces"} <= raw.keys():
            raise ConfigurationError("expected one of the keys 'space' and 'spaces', not both")
        if "spaces" in raw:
            if make_tokens == "always":
                raise ConfigurationError("tokens are made for a file with 'space' alone; list them")
            file: OurFile | ReferenceFile = _check(OurFile, raw, base)
            config = Config(file.read())
        else:
            file = _check(ReferenceFile, understood(raw, path), base)
            config = with_tokens(Config(file.read()), path, make=make_tokens)
        config = _lay_over(config, file)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    # As `meup up` does by itself, which starts from the same file.
    made = " (--make-tokens makes one)" if config.spaces[0].state is not None else ""
    for (space, name), entry in config.entries() if needs_tokens else ():
        if not entry.has_token:
            log.warning(
                "%s: %s in space %s has no token; it cannot join%s", path, name, space, made
            )
    return config


def environment_over(config: Config) -> Config:
    """A configuration, and what the environment says over it.

    Raises:
        ConfigurationError: Something in the environment is wrong.
    """
    raw = {name: asdict(getattr(config, name)) for name in _RECORDS if getattr(config, name)}
    raw["gateway"] = asdict(config.limits) | {key: getattr(config, key) for key in _KEYS_OF_CONFIG}
    return _lay_over(config, _check(Sections, raw))


_forms: Final[dict[object, TypeAdapter[Any]]] = {}


def form_of(sections: type[S]) -> TypeAdapter[S]:
    """Built once, in up to 70 ms: files are read again as they change."""
    if sections not in _forms:
        _forms[sections] = TypeAdapter(sections)
    return _forms[sections]


def _check(form: type[S], raw: Mapping[str, Any], folder: Path = Path()) -> S:
    """The keys of a file, and the environment over them, in their form."""
    try:
        return form_of(form).validate_python(_with_environment(raw), context=folder)
    except ValidationError as error:
        raise ConfigurationError(_describe_problem(error, form)) from None


def _lay_over(config: Config, sections: Sections) -> Config:
    """A configuration with these sections, checked as a whole."""
    gateway = sections.gateway
    limits = GatewayLimits(**values_of(GatewayLimits, gateway))
    if len(config.spaces) > limits.max_spaces:
        many = f"{len(config.spaces)} are more than max_spaces, which is {limits.max_spaces}"
        raise ConfigurationError(f"spaces: {many}")
    config.tokens()  # each token is one participant's alone
    address = {key: getattr(gateway, key) for key in _KEYS_OF_CONFIG}
    records = {name: getattr(sections, name) for name in _RECORDS}
    notify = sections.notify or config.notify
    return replace(config, limits=limits, notify=notify, **address, **records)


def _read(path: Path) -> dict[str, Any]:
    with explain_os_error(f"{path}: cannot be read", "; give the path of a gateway's YAML file"):
        raw = parse_yaml(path.read_bytes(), str(path))
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{path}: expected the key 'spaces'")
    return cast("dict[str, Any]", raw)


# --- the sentence about a wrong key ---

_UNKNOWN: Final = "unexpected_keyword_argument"

_SENTENCES: Final = {
    "missing": "is missing",
    "dataclass_type": "expected keys and values",
    "dict_type": "expected keys and values",
    "tuple_type": "expected a list",
    "string_type": "expected a text; put it in quotes",
    "invalid_key": "expected a text; put it in quotes",
    "path_type": "expected a path",
    "too_short": "expected at least one",
}
"""Sentences in the words of a file, not of the types behind it."""


def _describe_problem(error: ValidationError, form: type[Any]) -> str:
    """The first problem: its key and what was expected. The value stays out, it may be secret.

    Of several problems an unknown key is told first, since it may be what is missing elsewhere,
    misspelt.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = next((each for each in problems if each["type"] == _UNKNOWN), problems[0])
    kind, location = problem["type"], problem["loc"]
    # Pydantic ends the place so where the key itself is wrong, which may be a number.
    if location[-1:] == ("[key]",) or kind == "invalid_key":
        *names, wrong = (part for part in location if part != "[key]")
        location = (*names, str(wrong))
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:]
    if kind == _UNKNOWN:
        return f"{key}: unknown key; {_suggest(str(location[-1]), _keys_at(form, location))}"
    message = problem["msg"].replace("Input should be", "expected").removeprefix("Value error, ")
    said = _SENTENCES.get(kind, message)
    for setting, place in SETTINGS.items():
        if ".".join(place) == key:
            said += f" (or {variable_of(setting)} in the environment)"
    # What is wrong with a capability or a limit says itself where below the key it stands.
    below = "." if location == ("gateway",) and kind == "value_error" else ": "
    return f"{key}{'' if said.startswith('[') else below}{said}"


def _keys_at(form: Any, location: tuple[int | str, ...]) -> list[str]:
    """The keys that the mapping at a place can have."""
    parts = iter(location[:-1])
    for part in parts:
        if isinstance(part, int):  # a place in a list, whose form has been found
            continue
        held = get_type_hints(form)[part]
        form = next(filter(is_dataclass, (held, *get_args(held))))
        if get_origin(held) is dict:
            next(parts)  # the name of a space or a participant
    return [each.name for each in fields(form)]


def _suggest(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """Advice about a name that means nothing, from names that do, as these are to be written."""
    near = get_close_matches(name, tuple(known), 1)
    return f"did you mean {written(near[0])}?" if near else "remove it, or correct its spelling"


# --- the reference's space.yaml ---
# A file of the reference is read leniently, since its spaces go on here as they are: what this
# gateway has no use for is named in one warning. A key that looks like one of ours misspelt stays
# an error, since a lost `capabilities` would grant something else. Tokens stand in the file, in
# `.mew/tokens`, or in the environment as `MEW_TOKEN_<ID>`.

REFERENCE_PORT: Final = 8080
"""The port of the reference's gateway, which programs of a space that exists dial."""

MEW_FOLDER: Final = ".mew"

SPACE_FILE: Final = Path("space.yaml")

TOKEN_VARIABLE: Final = "MEW_TOKEN_"
"""The beginning of the environment variables that hold the tokens of a space's participants."""

TOKEN_SUFFIX: Final = ".token"

MAX_NAME_CHARS: Final = 200
"""Characters of a token file's name before its ending; file systems take 255."""

MakeTokens = Literal["never", "existing", "renewed", "always"]
"""Of participants without a token, those that get one in ``.mew/tokens``: ``existing`` and
``always`` all of them; with ``renewed`` those who have one there get another."""

_LIKE_OURS: Final = 0.75
"""Likeness from which an unknown key is taken for one of ours that is misspelt."""


# --- its place ---


def find_space_file(folder: Path = Path()) -> Path | None:
    """The file of the space in a folder, where the reference looks for it, if there is one."""
    for path in (folder / MEW_FOLDER / SPACE_FILE, folder / SPACE_FILE):
        if path.is_file():
            return path
    return None


def base_of(path: Path) -> Path:
    """The folder at which a file's paths begin: above ``.mew``, if the file is in there."""
    parent = path.parent
    return parent.parent if parent.resolve().name == MEW_FOLDER else parent


def state_of(path: Path) -> Path:
    """The folder in which the reference keeps the state of a file's space."""
    return base_of(path) / MEW_FOLDER


# --- its keys ---


def understood(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A file as our form has it, without what means nothing here; that is named in a warning."""
    file = _IgnoredFields(path).read(raw)
    if isinstance(file.get("gateway"), dict | None):  # else it is refused
        file["gateway"] = {"port": REFERENCE_PORT, **as_object(file.get("gateway"))}
    return file


class _IgnoredFields:
    """Collects what is ignored of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ignored: dict[str, list[str]] = {}
        self._reserved: list[str] = []

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        file = dict(raw)
        if "space" not in file and isinstance(file.get("participants"), list):
            # The oldest form: the space's name at the top, and participants in a list.
            names = {key: file.pop(key) for key in ("id", "name", "description") if key in file}
            file["space"] = {"id": names.get("id", names.get("name")), **names}
        self._drop_unknown("", file, ReferenceFile)
        space = file.get("space")
        if isinstance(space, dict):
            named = _named(cast("dict[str, Any]", space))
            file["space"] = self._drop_unknown("space", named, ReferenceSpaceForm)
        if "participants" in file:
            file["participants"] = self._participants(file["participants"])
        if isinstance(file.get("defaults"), dict):
            defaults = self._drop_unknown("defaults", _named(file["defaults"]), Defaults)
            file["defaults"] = self._without_reserved("defaults", defaults)
        elif file.get("defaults", self) is None:
            del file["defaults"]
        self._warn()
        return file

    def _participants(self, listed: object) -> object:
        listed = _by_id(listed)
        if not isinstance(listed, dict):
            return listed
        entries = cast("dict[str, object]", listed).items()
        return {name: self._participant(name, entry) for name, entry in entries}

    def _participant(self, name: str, entry: object) -> object:
        if not isinstance(entry, dict | None):
            return entry
        keys = _named(cast("dict[str, Any]", entry or {}))
        if keys.get("restart_policy") == "on-failure":
            del keys["restart_policy"]  # as every program is started again here
        for program in (keys, keys.get("mcp_server")):
            settings = cast("dict[str, Any]", program) if isinstance(program, dict) else {}
            if isinstance(settings.get("env"), dict):
                settings["env"] = {
                    key: str(value).lower() if isinstance(value, bool) else value
                    for key, value in _named(settings["env"]).items()
                }
        self._drop_unknown(f"participants.{name}", keys, ParticipantConfig, shown=str(name))
        return self._without_reserved(f"participants.{name}", keys)

    def _drop_unknown(
        self, place: str, keys: dict[str, Any], form: type[Any], *, shown: str = ""
    ) -> dict[str, Any]:
        known = [each.name for each in fields(form)]
        for key in [each for each in keys if each not in known]:
            misspelt = get_close_matches(str(key), known, 1, _LIKE_OURS)
            if misspelt:
                continue  # the form refuses it, and says which is meant
            del keys[key]
            what = f"participants.*.{key}" if shown else f"{place}.{key}" if place else str(key)
            self._ignored.setdefault(what, []).extend([shown] if shown else [])
        return keys

    def _without_reserved(self, place: str, keys: dict[str, Any]) -> dict[str, Any]:
        """The keys, with the capabilities that only the gateway has taken out."""
        listed = keys.get("capabilities")
        if not isinstance(listed, list):
            return keys
        kept = [_without_reserved_kinds(each) for each in cast("list[object]", listed)]
        if kept != listed:
            self._reserved.append(place)
        return {**keys, "capabilities": [each for each in kept if each is not None]}

    def _warn(self) -> None:
        path = self._path
        if self._ignored:
            said = ", ".join(
                f"{key} ({', '.join(names)})" if names else key
                for key, names in sorted(self._ignored.items())
            )
            log.warning("%s: ignored, since this gateway has no use for it: %s", path, said)
        if self._reserved:
            where = ", ".join(self._reserved)
            said = "%s: system/* comes only from the gateway, and is granted to none of: %s"
            log.warning(said, path, where)


def _by_id(listed: object) -> object:
    """Participants in a list as a mapping by their ids; anything else as it is."""
    if not isinstance(listed, list):
        return listed
    found: dict[str, Any] = {}
    for each in cast("list[object]", listed):
        entry = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        name = entry.get("id")
        if not isinstance(name, str):
            raise ConfigurationError("participants: expected names and keys, or a list with ids")
        if name in found:
            raise ConfigurationError(f"participants: {name!r} stands twice")
        found[name] = {key: value for key, value in entry.items() if key != "id"}
    return found


def _named(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have a value."""
    return {key: value for key, value in keys.items() if value is not None}


def _without_reserved_kinds(capability: object) -> object:
    """A capability without the kinds of the gateway; ``None`` if none is left."""
    if not isinstance(capability, dict):
        return capability
    keys = cast("dict[str, object]", capability)
    kind = keys.get("kind")
    listed = cast("list[object]", kind) if isinstance(kind, list) else [kind]
    kept = [each for each in listed if not (isinstance(each, str) and is_reserved_kind(each))]
    if kept == listed:
        return keys
    return {**keys, "kind": kept} if kept else None


# --- its tokens ---


def token_variable(participant: str) -> str:
    """The environment variable that may hold a participant's token."""
    return TOKEN_VARIABLE + participant.upper().replace("-", "_")


def token_folder(state: Path) -> Path:
    """The folder of the token files in the reference's folder of a space."""
    return state / "tokens"


def token_file(base: Path, participant: str) -> Path:
    """The file that the reference keeps a participant's token in."""
    name = quote(participant, safe=" ")
    if name.startswith(".") or len(name) > MAX_NAME_CHARS:
        raise ConfigurationError(
            f"participants.{participant[:MAX_NAME_CHARS]}: no file can have this name; list its"
            " token under 'tokens'"
        )
    return token_folder(base / MEW_FOLDER) / f"{name}{TOKEN_SUFFIX}"


def with_tokens(config: Config, path: Path, *, make: MakeTokens) -> Config:
    """A configuration with the tokens of the environment and of ``.mew/tokens``.

    A participant without any token may get one there, in a file that only its user reads. As with
    the reference the environment wins over the file.
    """
    (space,) = config.spaces
    base = base_of(path)
    participants = {
        name: _with_token(name, entry, base, make=make != "never", renew=make == "renewed")
        for name, entry in space.participants.items()
    }
    space = replace(space, participants=participants, state=state_of(path))
    return replace(config, spaces=(space,))


def _with_token(
    name: str, entry: ParticipantConfig, base: Path, *, make: bool, renew: bool
) -> ParticipantConfig:
    found: str | None = None
    try:
        file = token_file(base, name)
    except ConfigurationError:
        if make and not entry.has_token:
            raise
        return entry
    if file.is_file():
        found = renew_token(file, make_token) if renew else read_token(file)
    variable = token_variable(name)
    if given := os.environ.get(variable, "").strip():
        if found not in (None, given):
            log.warning(
                "%s and %s hold different tokens of %s; that of the environment counts, and the"
                " one in the file is refused",
                variable,
                file,
                name,
            )
        found = given
    if found is None and make and not entry.has_token:
        found = make_token(file)
        log.info("made a token for %s in %s", name, file)
    if found is None or found in entry.known_tokens:
        return entry
    return replace(entry, tokens=(*entry.tokens, found))


def make_token(file: Path) -> str:
    """A new token, in a file for this user alone.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    folder, token = file.parent, new_token()
    with explain_os_error(f"{file} cannot be written"):
        folder.parent.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            (folder / ".gitignore").write_text("*\n!.gitignore\n", encoding="utf-8")
        if stat.S_IMODE(folder.stat().st_mode) & 0o022:
            raise ConfigurationError(
                f"{folder} can be changed by other users, and tokens are kept there; run: chmod 700"
                f" {folder}"
            )
        write_new_file(file, f"{token}\n".encode())
    return token

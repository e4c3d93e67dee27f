"""Plans of ``meup guard``: hooks in settings, and MCP servers moved behind the gateway and back.

Each agent that had some gets one server in their place, ``meup``, which is its participant at the
gateway. Entries are moved as they are, and only those that the gateway can start; what was moved
is recorded before any settings change, so that it can be put back. In TOML they are commented out
where they stand.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from meup_agent.cli.guard.agents import (
    AGENTS,
    FOREIGN_SERVER,
    OWN_SERVER,
    CodingAgent,
    HookProgram,
    user_folder,
)
from meup_agent.cli.guard.files import (
    FileChange,
    comments_in,
    lines_in_strings,
    read_commented,
    read_document,
    read_json,
    read_settings,
    read_toml,
    write_json,
)
from meup_agent.cli.up.plan import check_command
from meup_agent.errors import ConfigurationError
from meup_agent.mcp.bridge.config import parse_servers
from meup_agent.protocol.wire.payloads import as_object

JsonObject = dict[str, Any]

PREFIX: Final = "#meup# "
"""The beginning of each line of TOML that was taken out."""

_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")  # as TOML has it: other ends are within texts
_HEADER: Final = re.compile(r"^\s*\[")
_CODEX_ONLY: Final = ("enabled", "startup_timeout_sec", "tool_timeout_sec")
_HEADERS: Final = "http_headers"


class ServerList(NamedTuple):
    """A settings file with MCP servers of an agent.

    Attributes:
        agent: The agent's name.
        path: The file.
        key: The key that has them.
        project: The folder whose it is; ``None``: it is the user's, where our own server belongs.
    """

    agent: str
    path: Path
    key: str
    project: Path | None = None


def server_lists(agent: str, project: Path | None = None) -> Iterator[ServerList]:
    """The files with an agent's MCP servers: the user's, and those of a project's folder."""
    config = user_folder("CLAUDE_CONFIG_DIR", "")
    known = {
        "claude-code": (config / ".claude.json", "mcpServers", ".mcp.json"),
        "codex": (AGENTS["codex"].settings(), "mcp_servers", ""),
        "cursor": (user_folder("", ".cursor") / "mcp.json", "mcpServers", ".cursor/mcp.json"),
        "gemini": (AGENTS["gemini"].settings(), "mcpServers", ""),
        "vscode": (AGENTS["vscode"].settings(), "servers", ".vscode/mcp.json"),
    }
    if agent in known:
        path, key, name = known[agent]
        yield ServerList(agent, path, key)
        # In the home folder both are one file.
        if project is not None and name and project / name != path:
            yield ServerList(agent, project / name, key, project)


class MovedServer(msgspec.Struct):
    """An MCP server that was moved.

    Attributes:
        entry: Its entry, as it was.
        given: Its entry as the gateway reads it.
        name: Its name at the gateway.
    """

    entry: JsonObject
    given: JsonObject
    name: str


class GuardedFile(msgspec.Struct):
    """A settings file that was changed.

    Attributes:
        agent: Whose it is.
        servers: The MCP servers that were moved out of it, by their names there.
        before: Its text at first, empty where it was not there; ``None``: another program has
            changed it since.
        after: Its text after our last change.
    """

    agent: str
    servers: dict[str, MovedServer] = {}
    before: str | None = None
    after: str = ""


GuardRecord = dict[str, GuardedFile]
"""All settings files that were changed, by their paths."""


def gateway_servers(record: GuardRecord) -> dict[str, JsonObject]:
    """The servers of the gateway, as `meup up --servers` takes them."""
    found = (each for file in record.values() for each in file.servers.values())
    return {each.name: each.given for each in found}


MIN_SECRET_CHARS: Final = 4
"""Characters of a value that may be a secret: shorter ones stand in too many other words."""

_SECRET_KEY: Final = re.compile(r"key|token|secret|passw|auth|credential|cookie", re.IGNORECASE)
_URL: Final = re.compile(r"\w+://(?:[^/@\s]*:(?P<password>[^/@\s]+)@)?[^?\s]*\??(?P<query>[^#\s]*)")


def secrets_in(change: FileChange) -> list[str]:
    """Texts of a settings file that may be secrets, as they stand there; the longest first.

    These are the values of variables and headers, those of keys and options that are named like
    one, and what stands in an address for a password or behind ``?``.
    """
    found = set[str]()
    for text in (change.before, change.after):
        read = read_toml if change.path.suffix == ".toml" else read_commented
        found |= set(_secrets_of(read(text or "", change.path)))
    found = {each for each in found if len(each) >= MIN_SECRET_CHARS}
    for each in [*found]:
        found |= {json.dumps(each, ensure_ascii=ascii)[1:-1] for ascii in (False, True)}
    return sorted(found, key=len, reverse=True)


def _secrets_of(value: object, *, is_secret: bool = False) -> Iterator[str]:
    match value:
        case str():
            if is_secret:
                yield value
            for url in _URL.finditer(value):
                yield url["password"] or ""
                yield from (each.partition("=")[2] for each in url["query"].split("&"))
        case dict() if not is_own_server(cast("JsonObject", value)):
            for key, each in cast("JsonObject", value).items():
                named = key in ("env", "headers", _HEADERS) or _SECRET_KEY.search(key) is not None
                yield from _secrets_of(each, is_secret=is_secret or named)
        case list():
            follows = False
            for each in cast("list[object]", value):
                name, _, given = str(each).partition("=")
                is_option = name.startswith("-") and _SECRET_KEY.search(name) is not None
                is_option = is_option and not name.endswith("file")  # whose path is none
                if is_option:
                    yield given
                yield from _secrets_of(each, is_secret=is_secret or (follows and not is_option))
                follows = is_option and not given
        case _:
            pass


def _for_gateway(entry: JsonObject, listed: ServerList) -> JsonObject:
    """An entry in the form that `meup up --servers` reads."""
    given = dict(entry)
    if listed.path.suffix == ".toml":
        given = {key: value for key, value in given.items() if key not in _CODEX_ONLY}
        if _HEADERS in given:
            given["headers"] = given.pop(_HEADERS)
    if listed.project is not None and "command" in given:
        given["cwd"] = str(listed.project / str(given.get("cwd", "")))
    return given


def take_servers(
    listed: ServerList,
    text: str | None,
    record: GuardRecord,
    taken: Container[str],
) -> tuple[str | None, dict[str, MovedServer], list[str]]:
    """Take the servers out of a file that the gateway can start.

    Args:
        listed: The file.
        text: Its text.
        record: What was moved before.
        taken: Names that no server may have at the gateway.

    Returns:
        Its new text, what is moved out of it then, and why others stay.

    Raises:
        ConfigurationError: It cannot be read.
    """
    document = read_document(text or "", listed.path)
    moved, stays = dict[str, MovedServer](), list[str]()
    for name, entry in as_object(document.get(listed.key)).items():
        if name == OWN_SERVER:
            continue
        problem = _problem(name, entry, listed)
        if problem:
            stays.append(f"the MCP server {name} of {listed.path} stays there: {problem}")
            continue
        given = _for_gateway(as_object(entry), listed)
        moved[name] = MovedServer(
            as_object(entry), given, _free_name(name, listed, given, record, taken)
        )
    if not moved or text is None:
        return text, {}, stays
    try:
        return _without(text, listed, [*moved]), moved, stays
    except ConfigurationError as error:
        return text, {}, [*stays, str(error)]


def _problem(name: str, entry: object, listed: ServerList) -> str:
    """The reason for which the gateway cannot start a server; empty: it can."""
    of = as_object(entry)
    if of.get("enabled") is False or of.get("disabled") is True:
        return "it is disabled"
    try:
        given = _for_gateway(of, listed)
        for server in parse_servers({"mcpServers": {name: given}}, os.environ).values():
            check_command(server)
    except ConfigurationError as error:
        return str(error)
    return ""


def _free_name(
    name: str, listed: ServerList, given: JsonObject, record: GuardRecord, taken: Container[str]
) -> str:
    """The name of a server at the gateway: its own, unless another one has that."""
    there = gateway_servers(record)
    names = (name, *(f"{name}-{listed.agent}{each}" for each in ("", *map(str, range(2, 100)))))
    return next(each for each in names if each not in taken and there.get(each, given) == given)


def _without(text: str, listed: ServerList, names: list[str]) -> str:
    if listed.path.suffix != ".toml":
        document = read_json(text, listed.path)
        document[listed.key] = {
            name: entry for name, entry in document[listed.key].items() if name not in names
        }
        return write_json(document, text)
    # A table is commented out where it stands, up to the next header.
    lines, is_out, place, within = list[str](), False, 0, lines_in_strings(text)
    for line in _LINE.findall(text):
        is_text, place = place in within, place + len(line)
        if _HEADER.match(line) and not is_text:
            is_out = any(_is_header_of(line, listed.key, name) for name in names)
        keeps = line.lstrip().startswith("#") or not line.strip()
        lines.append(f"{PREFIX}{line}" if is_out and not keeps else line)
    after = "".join(lines)
    wanted = read_toml(text, listed.path)
    for name in names:
        del wanted[listed.key][name]
    if not wanted[listed.key]:
        del wanted[listed.key]
    found = read_toml(after, listed.path)
    if not found.get(listed.key, True):
        del found[listed.key]
    if found != wanted:
        raise ConfigurationError(
            f"the servers of {listed.path} stay: they are not written as tables of their own"
        )
    return after


def _is_header_of(line: str, key: str, name: str) -> bool:
    quoted = (name, f'"{name}"', f"'{name}'")
    said = line.strip()
    return any(said.startswith((f"[{key}.{each}]", f"[{key}.{each}.")) for each in quoted)


def with_own(text: str | None, listed: ServerList, own: JsonObject | None) -> str:
    """A JSON file with our own server, or without one (``None``).

    Raises:
        ConfigurationError: It cannot be read, or has a server of the name that is another one.
    """
    document = read_json(text, listed.path)
    if not isinstance(document.get(listed.key, {}), dict):
        raise ConfigurationError(f"{listed.path}: its {listed.key} is not an object; it is left")
    entries = as_object(document.get(listed.key))
    there = entries.get(OWN_SERVER)
    if there == own or (there is not None and not is_own_server(there)):
        if own is not None and there != own:
            raise ConfigurationError(FOREIGN_SERVER.format(listed.path))
        return text or ""
    changed = {**entries, OWN_SERVER: own}
    if own is None:
        del changed[OWN_SERVER]
    document = {**document, listed.key: changed}
    return write_json(document, text)


def is_own_server(entry: object) -> bool:
    """True for the entry of `meup mcp` that we write."""
    of = as_object(entry)
    args: object = of.get("args")
    is_ours = isinstance(args, list) and args[:2] == ["mcp", "--token-file"]
    return is_ours and Path(str(of.get("command"))).name == "meup"


def put_back(path: Path, text: str, moved: Mapping[str, MovedServer], key: str) -> str:
    """The text of a file with the servers that were moved out of it.

    One that has been written under the same name meanwhile stays.

    Raises:
        ConfigurationError: It cannot be read.
    """
    if path.suffix == ".toml":
        ours = [at for at, said in comments_in(text) if said.startswith(PREFIX)]
        for at in reversed(ours):
            if at == 0 or text[at - 1] == "\n":
                text = text[:at] + text[at + len(PREFIX) :]
        return text
    if not moved:
        return text
    document = read_json(text, path)
    back = {name: each.entry for name, each in moved.items()}
    document[key] = {**back, **as_object(document.get(key))}
    return write_json(document, text)


# --- plans ---
# The new text of each settings file. A file may have both the hooks and the MCP servers of an
# agent, so each step takes the text that the one before has made. Where nobody else has changed a
# file since, it is put back byte for byte.

_TAKEN: Final = frozenset({"agent", "you", "reviewer", *AGENTS})
"""Names of participants beside the servers."""


class GuardPlan(NamedTuple):
    """All that is to be changed.

    Attributes:
        changes: The change of each file, also where none is needed.
        record: The record, as it is after them.
        stays: Why some servers stay where they are.
    """

    changes: list[FileChange]
    record: GuardRecord
    stays: list[str]


class _Texts(dict[Path, str | None]):
    """The text of each file as it is planned so far; at first as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[Path, str | None] = {}

    def __missing__(self, path: Path) -> str | None:
        self[path] = self.before[path] = read_settings(path)
        return self[path]

    def changes(self) -> list[FileChange]:
        return [FileChange(path, self.before[path], text or "") for path, text in self.items()]


def plan_install(
    agents: Iterable[CodingAgent],
    hook_of: Callable[[CodingAgent], HookProgram],
    record: GuardRecord,
    *,
    moves: bool,
    project: Path | None,
) -> GuardPlan:
    """Plan the hooks of some agents, and the move of their MCP servers.

    Args:
        agents: The agents.
        hook_of: The program that an agent starts.
        record: The changes of earlier runs.
        moves: Their MCP servers are moved.
        project: A folder whose files are changed, too.

    Raises:
        ConfigurationError: A file cannot be read, or is not what its agent reads.
    """
    texts, record, stays = _Texts(), dict(record), list[str]()
    owners: dict[Path, str] = {}
    for agent in agents:
        lists = [*server_lists(agent.name, project)]
        for listed in lists if moves else ():
            text = texts[listed.path]
            texts[listed.path], moved, said = take_servers(listed, text, record, _TAKEN)
            owners[listed.path] = agent.name
            stays += said
            if moved:
                known = record.get(str(listed.path), GuardedFile(agent.name))
                servers = {**known.servers, **moved}
                record[str(listed.path)] = replace(known, agent=agent.name, servers=servers)
        serves = any(file.agent == agent.name and file.servers for file in record.values())
        hook = hook_of(agent)._replace(serves=serves)
        for listed in lists if serves else ():
            if listed.project is None and listed.path.suffix == ".json":
                own = hook.server(agent.name)
                texts[listed.path] = with_own(texts[listed.path], listed, own)
                owners[listed.path] = agent.name
        path = agent.settings()
        texts[path] = agent.edited(texts[path], hook)
        owners[path] = agent.name
    changes = texts.changes()
    for change in changes:
        if change.is_needed:
            key = str(change.path)
            known = record.get(key, GuardedFile(owners[change.path]))
            is_first = not known.after
            # As it was at first: a guard before this one has ended before it wrote the file.
            now = change.before or ""
            is_ours = is_first or now in (known.after, known.before)
            first = now if is_first else known.before
            before = first if is_ours else None
            record[key] = replace(known, before=before, after=change.after)
    return GuardPlan(changes, record, stays)


def plan_removal(agents: Iterable[CodingAgent], record: GuardRecord) -> GuardPlan:
    """Plan to take the hooks of some agents out, and to put their MCP servers back.

    Raises:
        ConfigurationError: A file cannot be read.
    """
    texts, record = _Texts(), dict(record)
    for agent in agents:
        lists = {each.path: each for each in server_lists(agent.name)}
        recorded = {Path(key) for key, file in record.items() if file.agent == agent.name}
        hooked = {agent.settings()}
        # A variable may have named another folder, with files of the same names.
        for path in recorded - lists.keys() - hooked:
            if path in {each.path for each in server_lists(agent.name, path.parent.parent)}:
                continue  # a project's, which has no hook and no server of ours
            same = (each for each in [*lists.values()] if each.path.name == path.name)
            if (listed := next(same, None)) is not None:
                lists[path] = listed._replace(path=path)
            if path.name == agent.settings().name:
                hooked.add(path)
        for path in sorted(recorded | lists.keys() | hooked):
            known = record.pop(str(path), GuardedFile(agent.name))
            text = texts[path]
            if text is None:
                continue
            if known.before is not None and text == known.after:
                text = known.before
            elif path.suffix == ".toml" or known.servers:
                key = lists[path].key if path in lists else _key_of(path)
                text = put_back(path, text, known.servers, key)
            if path in lists and path.suffix == ".json":
                text = with_own(text, lists[path], None)
            texts[path] = agent.edited(text, None, path) if path in hooked else text
    return GuardPlan(texts.changes(), record, [])


def _key_of(path: Path) -> str:
    """The key of the servers in a project's file."""
    return "servers" if path.parent.name == ".vscode" else "mcpServers"

"""Plans of ``meup guard``: the new text of each settings file, of one or more agents.

A file may have both the hooks and the MCP servers of an agent, so each step takes the text that the
one before has made. What a file was at first is kept in a record: where nobody else has changed it
since, it is put back byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from meup_agent.cli.guard.agents import AGENTS, CodingAgent, HookProgram
from meup_agent.cli.guard.files import FileChange, read_settings
from meup_agent.cli.guard.servers import (
    GuardedFile,
    GuardRecord,
    put_back,
    server_lists,
    take_servers,
    with_own,
)

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
                record[str(listed.path)] = GuardedFile(
                    agent.name, servers, known.before, known.after
                )
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
            record[key] = GuardedFile(
                known.agent, known.servers, first if is_ours else None, change.after
            )
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

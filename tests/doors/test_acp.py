"""`meup acp` between an editor and an agent on the ACP SDK."""

import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Proposal, Space
from meup_agent.errors import AlreadyDecided
from meup_agent.types import ProposalRecord
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.processes import environment
from tests.forkserver import launched
from tests.interaction.people import PROPOSALS, until
from tests.mcp.conftest import Stage, staged
from tests.patience import PATIENCE
from tests.programs import ROOT
from tests.wire import payloads

pytestmark = pytest.mark.anyio

AGENT = ROOT / "tests" / "doors" / "acp_agent.py"

OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "once", "name": "Yes", "kind": "allow_once"},
    {"optionId": "never", "name": "Never", "kind": "reject_always"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
CANCELLED = {"outcome": "cancelled"}
ALLOWED = {"outcome": {"outcome": "selected", "optionId": "once"}}


def permission(command: str = "ls", **more: Any) -> list[Any]:
    call = {"toolCallId": "t1", "kind": "execute", "title": "Run", "rawInput": {"command": command}}
    params = {"toolCall": call, "options": OPTIONS, **more}
    return ["session/request_permission", params]


def terminal(command: str = "ls", **more: Any) -> list[Any]:
    return ["terminal/create", {"command": command, **more}]


def write(path: str, content: str) -> list[Any]:
    return ["fs/write_text_file", {"path": path, "content": content}]


def sdk() -> Any:
    """The SDK, whose import takes half a second: not of each worker that collects the tests."""
    import acp

    return acp


class Editor:
    """An editor that notes what reaches it."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.told: list[Any] = []

    async def request_permission(self, **asked: Any) -> Any:
        raise AssertionError(f"a permission reached the editor: {asked}")

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.told.append(json.loads(update.content.text))

    async def create_terminal(
        self, session_id: str, command: str, args: Any = None, **_: Any
    ) -> Any:
        self.did.append([command, *(args or ())])
        return sdk().schema.CreateTerminalResponse(terminal_id="terminal-1")

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> Any:
        self.did.append((path, content))
        return sdk().schema.WriteTextFileResponse()

    async def read_text_file(self, session_id: str, path: str, **_: Any) -> Any:
        return sdk().schema.ReadTextFileResponse(content=f"content of {path}")


@dataclass
class Desk:
    """An editor, its agent behind the proxy, and the space that decides.

    Attributes:
        connection: The editor's connection.
        editor: What the editor notes.
        person: The space as a person sees it.
        process: The proxy.
        session: The session's id.
    """

    connection: Any
    editor: Editor
    person: Space
    process: Any
    stage: Stage
    session: str = ""
    answers: list[Any] = field(default_factory=list)

    async def prompt(self, *steps: list[Any]) -> list[Any]:
        """Have the agent ask for something; the answers that it got."""
        said = await self.connection.prompt(
            session_id=self.session, prompt=[sdk().text_block(json.dumps(steps))]
        )
        self.answers.append(said.stop_reason)
        return list(self.editor.told.pop())

    async def proposal(self, count: int = 1) -> ProposalRecord:
        """The last proposal, once there are so many."""
        await until(lambda: len(self.person.proposals) >= count)
        return self.person.proposals[-1]


@asynccontextmanager
async def desk(
    decide: Callable[[Proposal], Any] | None = None,
    *options: str,
    limit: int = 1 << 20,
    coder: Sequence[Mapping[str, Any]] = PROPOSALS,
    token: str | None = None,
) -> AsyncGenerator[Desk]:
    person = Agent("ann")
    if decide is not None:
        person.on_proposal(tool="*")(decide)
    async with staged(person, coder=coder) as stage:
        given = ("-m", "meup_agent.cli", "acp", *options, "--", *launched(str(AGENT)))
        command, *arguments = launched(*given)
        variables = {
            "MEUP_URL": stage.gateway.url,
            "MEUP_SPACE": "demo",
            "MEUP_TOKEN": token or stage.token("coder"),
        }
        editor: Any = Editor()  # of the protocol's methods those that are used here
        async with sdk().spawn_agent_process(
            editor,
            command,
            *arguments,
            env=environment(variables),
            cwd=ROOT,
            transport_kwargs={"limit": limit, "stderr": None, "shutdown_timeout": PATIENCE},
        ) as (connection, process):
            await connection.initialize(protocol_version=1)
            made = Desk(connection, editor, stage.spaces["ann"], process, stage)
            made.session = (await connection.new_session(cwd="/work/project")).session_id
            yield made


async def yes(proposal: Proposal) -> None:
    await proposal.fulfill()


async def no(proposal: Proposal) -> None:
    await proposal.reject("unsafe", explain="not on this machine")


async def test_what_is_allowed_is_answered_once_or_reaches_the_editor() -> None:
    async with desk(yes) as at:
        answers = await at.prompt(
            permission("make"), terminal("ls", args=["-l"]), write("/w/a.txt", "text")
        )
        assert answers == [ALLOWED, {"terminalId": "terminal-1"}, {}]
        assert sorted(map(str, at.editor.did)) == ["('/w/a.txt', 'text')", "['ls', '-l']"]
        calls = [(each.tool, each.arguments) for each in at.person.proposals]
        labels = payloads.meta_of(at.person.proposals[0].envelope.payload)["dev.meup/door"]
    assert ("execute", {"command": "make", "title": "Run"}) in calls
    assert ("execute", {"command": "ls -l", "args": ["-l"]}) in calls
    assert ("edit", {"path": "/w/a.txt", "content": "text"}) in calls
    told = {"agent": "scripted", "session": at.session, "cwd": "/work/project", "edits": False}
    assert labels == told


async def test_what_is_rejected_runs_nowhere_and_says_why() -> None:
    async with desk(no) as at:
        asked, made, written = await at.prompt(permission(), terminal(), write("/w/a", ""))
        assert at.editor.did == []
    assert asked["outcome"] == {"outcome": "selected", "optionId": "no"}
    assert "not on this machine" in asked["_meta"]["dev.meup/why"]
    assert made["error"] == written["error"] == -32001
    assert "rejected as unsafe" in made["text"]


@pytest.mark.parametrize(
    ("kinds", "decide"),
    [
        (["allow_once"], no),
        (["allow_once", "reject_always"], no),
        (["allow_always", "reject_once"], yes),
        ([], yes),
    ],
)
async def test_no_answer_decides_later_calls(kinds: list[str], decide: Any) -> None:
    options = [{"optionId": each, "name": each, "kind": each} for each in kinds]
    async with desk(decide) as at:
        (answer,) = await at.prompt(permission(options=options))
    assert answer["outcome"] == CANCELLED


async def test_an_id_that_stands_for_two_answers_selects_none() -> None:
    options = [{**each, "optionId": "same"} for each in OPTIONS]
    async with desk(yes) as at:
        (answer,) = await at.prompt(permission(options=options))
    assert answer["outcome"] == CANCELLED


async def test_silence_cancels() -> None:
    async with desk(None, "--ttl", "0.3") as at:
        asked, made = await at.prompt(permission(), terminal())
        assert at.editor.did == []
    assert asked["outcome"] == CANCELLED
    assert made["error"] == -32800
    assert "do not try to do the same by another way" in made["text"]


async def test_a_cancelled_turn_withdraws() -> None:
    async with desk() as at, anyio.create_task_group() as tasks:
        answers: list[Any] = []

        async def prompt() -> None:
            answers.extend(await at.prompt(permission(), terminal()))

        tasks.start_soon(prompt)
        await at.proposal(2)
        await at.connection.cancel(session_id=at.session)
        await until(lambda: {each.state for each in at.person.proposals} == {"withdrawn"})
        await until(lambda: len(answers) == 2)
        assert (answers[0]["outcome"], answers[1]["error"]) == (CANCELLED, -32800)
        assert at.answers == ["cancelled"]


async def test_a_late_yes_runs_nothing() -> None:
    async with desk() as at, anyio.create_task_group() as tasks:
        tasks.start_soon(at.prompt, terminal())
        proposal = await at.proposal()
        await at.connection.cancel(session_id=at.session)
        await until(lambda: proposal.state == "withdrawn")
        with pytest.raises(AlreadyDecided):
            await at.person.proposals.get(proposal).fulfill()
        assert at.editor.did == []


async def test_an_edited_yes_runs_nothing() -> None:
    async def edit(proposal: Proposal) -> None:
        outcome = await proposal.fulfill({"command": "true"})
        assert outcome.error is not None

    async with desk(edit) as at:
        (answer,) = await at.prompt(terminal("ls"))
        assert at.editor.did == []
    assert answer["error"] == -32800
    assert "other arguments" in answer["text"]


@pytest.mark.parametrize("side", ["agent", "editor"])
async def test_the_end_of_one_side_ends_everything(side: str) -> None:
    async with desk() as at, anyio.create_task_group() as tasks:

        async def prompt() -> None:
            with pytest.raises((sdk().RequestError, ConnectionError)):
                await at.prompt(terminal())

        tasks.start_soon(prompt)
        proposal = await at.proposal()
        if side == "agent":
            tasks.start_soon(end_agent, at)
        else:
            at.process.stdin.close()
        await until(lambda: proposal.state == "withdrawn")
        with anyio.fail_after(PATIENCE):
            assert await at.process.wait() == (1 if side == "agent" else 0)


async def end_agent(at: Desk) -> None:
    with pytest.raises((sdk().RequestError, ConnectionError)):
        await at.connection.prompt(session_id=at.session, prompt=[sdk().text_block('"die"')])


async def test_one_call_that_asks_twice_is_decided_once() -> None:
    diff = {"type": "diff", "path": "/w/a", "newText": "new"}
    call = {"toolCallId": "t2", "kind": "edit", "title": "Write", "content": [diff]}
    edit = ["session/request_permission", {"toolCall": call, "options": OPTIONS}]
    async with desk(yes) as at:
        for steps in (
            [permission("make && ls"), terminal("bash", args=["-lc", "make && ls"])],
            [permission("make"), terminal("make", cwd="/work/project")],
            [edit, write("/w/a", "new")],
        ):
            before = len(at.person.proposals)
            # In one turn, in two steps: the agent waits for its permission.
            await at.prompt(["then", steps])
            assert len(at.person.proposals) == before + 1
        assert len(at.editor.did) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "used",
    [
        terminal("make", args=["clean"]),
        terminal("make", cwd="/etc"),
        terminal("make", env=[{"name": "LD_PRELOAD", "value": "x.so"}]),
        terminal("sh", args=["make"]),
        terminal("/work/project/sh", args=["-c", "make"]),
        write("/w/a", "make"),
    ],
)
async def test_another_call_than_the_permitted_is_decided_by_itself(used: list[Any]) -> None:
    async with desk(yes) as at:
        await at.prompt(["then", [permission("make"), used]])
        assert len(at.person.proposals) == 2


async def test_a_permission_for_another_folder_is_not_for_the_sessions() -> None:
    there = {"command": "make clean", "cwd": "/elsewhere"}
    call = {"toolCallId": "t1", "kind": "execute", "title": "Run", "rawInput": there}
    async with desk(yes) as at:
        for used in (terminal("make clean"), terminal("make clean", cwd="/elsewhere")):
            await at.prompt(["then", [permission(toolCall=call), used]])
        assert len(at.person.proposals) == 3


async def test_a_permission_is_used_once_and_in_its_turn() -> None:
    async with desk(yes) as at:
        await at.prompt(["then", [permission("make"), terminal("make"), terminal("make")]])
        assert len(at.person.proposals) == 2
        await at.prompt(permission("make"))
        await at.prompt(terminal("make"))
        assert len(at.person.proposals) == 4


async def test_the_rest_passes_and_the_agent_gets_no_token() -> None:
    async with desk() as at:
        (read,) = await at.prompt(["fs/read_text_file", {"path": "/w/a"}])
        assert read == {"content": "content of /w/a"}
        assert len(at.person.proposals) == 0
        await at.connection.prompt(session_id=at.session, prompt=[sdk().text_block('"secret"')])
        assert "MEUP_TOKEN" not in at.editor.told.pop()
        assert "PATH" in os.environ

"""Calls that an agent's terminal is asked about as well: the first answer counts."""

import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from meup_agent import Proposal
from meup_agent.doors import terminal_race
from meup_agent.doors.hooks import DIALECTS, HookInput
from meup_agent.doors.permit import Door
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Decide, Hooked, asked, client, proposed, settled
from tests.doors.test_hooks import no, yes
from tests.interaction.people import until
from tests.patience import PATIENCE
from tests.wire import read_proposal

pytestmark = pytest.mark.anyio


PRE: dict[str, Any] = {
    "session_id": "s1",
    "prompt_id": "p1",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "make"},
    "tool_use_id": "toolu_1",
}
DIALOG = {**PRE, "hook_event_name": "PermissionRequest"}
del DIALOG["tool_use_id"]
POST = {**PRE, "hook_event_name": "PostToolUse", "tool_response": "done"}
STOP = {"session_id": "s1", "prompt_id": "p1", "hook_event_name": "Stop"}


class Host:
    """Claude Code at a terminal, as far as its hooks show."""

    def __init__(self, at: Hooked, http: Any) -> None:
        self.at = at
        self._http = http
        self.answer: dict[str, Any] | None = None
        self.answered = anyio.Event()
        self.hang_up = anyio.CancelScope()

    async def say(self, said: dict[str, Any]) -> Any:
        return (await self._http.post("/hooks/claude-code?prefer=terminal", json=said)).json()

    async def dialog(self, said: dict[str, Any] = DIALOG) -> None:
        with self.hang_up:
            self.answer = (await self.say(said)).get("hookSpecificOutput", {}).get("decision")
        self.answered.set()


@asynccontextmanager
async def host(decide: Decide | None = None) -> AsyncGenerator[Host]:
    async with asked(decide) as (at, http):
        yield Host(at, http)


def verdict(answer: dict[str, Any]) -> str:
    return str(answer["hookSpecificOutput"]["permissionDecision"])


@pytest.mark.parametrize(("decide", "said"), [(yes, "allow"), (no, "deny")])
async def test_what_is_decided_at_once_is_not_asked_about(
    decide: Decide, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_race, "FIRST_SECONDS", PATIENCE)
    async with host(decide) as claude:
        assert verdict(await claude.say(PRE)) == said
        assert len(claude.at.space.proposals) == 1


@pytest.mark.parametrize("decided", ["yes", "no", "edit"])
@pytest.mark.parametrize("asked", ["before", "never"])
async def test_the_space_answers_a_dialog(decided: str, asked: str) -> None:
    """Also one whose call no other hook has asked about."""
    async with host() as claude, anyio.create_task_group() as tasks:
        if asked == "before":
            assert verdict(await claude.say(PRE)) == "ask"
        tasks.start_soon(claude.dialog)
        await proposed(claude.at.space)
        proposal = claude.at.space.proposals.get(claude.at.space.proposals[0])
        assert read_proposal(proposal.envelope.payload).is_at_terminal
        if decided == "no":
            await proposal.reject("unsafe", explain="not on Fridays")
        else:
            await proposal.fulfill({"command": "ls"} if decided == "edit" else None)
        await claude.answered.wait()
        assert claude.answer is not None
        if decided == "no":
            assert claude.answer["behavior"] == "deny"
            assert "not on Fridays" in claude.answer["message"]
        else:
            ran = {"command": "ls" if decided == "edit" else "make"}
            assert claude.answer == {"behavior": "allow", "updatedInput": ran}
            await claude.say({**POST, "tool_input": ran})
            assert await settled(claude.at.space) == "fulfilled"
        assert len(claude.at.space.proposals) == 1


SETTLING: dict[str, dict[str, Any] | None] = {
    "it ran": POST,
    "it failed": {**POST, "hook_event_name": "PostToolUseFailure", "error": "no"},
    "the turn has ended": STOP,
    "the session has ended": {"session_id": "s1", "hook_event_name": "SessionEnd"},
    "a person asks for something else": {**PRE, "prompt_id": "p2", "tool_use_id": "toolu_2"},
    "its dialog has gone": None,
}


@pytest.mark.parametrize("how", SETTLING)
async def test_what_was_answered_there_is_taken_back(how: str) -> None:
    async with host() as claude, anyio.create_task_group() as tasks:
        tasks.start_soon(claude.dialog)
        await proposed(claude.at.space)
        said = SETTLING[how]
        if said is None:
            claude.hang_up.cancel()
        else:
            tasks.start_soon(claude.say, said)
        assert await settled(claude.at.space) == "withdrawn"
        await claude.answered.wait()
        assert claude.answer is None  # what it had waited for stays with the terminal
        if said is not None:
            assert claude.at.space.proposals[0].reason == terminal_race.ANSWERED_THERE
        tasks.cancel_scope.cancel()


@pytest.mark.rule("4.20.report")
async def test_a_yes_there_before_a_no_in_the_space_shows_once_it_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal_race, "FIRST_SECONDS", 0.0)
    async with host() as claude, anyio.create_task_group() as tasks:
        assert verdict(await claude.say(PRE)) == "ask"
        tasks.start_soon(claude.dialog)
        await proposed(claude.at.space)
        await no(claude.at.space.proposals.get(claude.at.space.proposals[0]))
        assert await settled(claude.at.space) == "rejected"
        record = claude.at.space.proposals[0]
        await claude.say(POST)
        await until(lambda: record.report is not None)
        assert record.report is not None
        assert (record.state, record.report.output) == ("rejected", "done")
        (listed,) = [each async for each in claude.at.space.proposals.list(state="decided")]
        assert (listed.state, listed.report) == ("rejected", record.report)
        async with client(claude.at, "ann") as http:
            said = (await http.get("/spaces/demo/history")).json()["decisions"]
        assert [(each["state"], each["failed"], each["ran_anyway"]) for each in said] == [
            ("rejected", False, True)
        ]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("said", [POST, STOP], ids=["a yes there", "a no there"])
async def test_a_permit_that_a_dialog_did_not_hear_of_is_settled_by_its_agent(
    said: dict[str, Any],
) -> None:
    async def decide(proposal: Proposal) -> None:
        dialogs.pop().close()
        await proposal.fulfill()

    dialogs: list[socket.socket] = []
    async with host(decide) as claude:
        dialog = socket.create_connection(("127.0.0.1", int(claude.at.url.rpartition(":")[2])))
        dialogs.append(dialog)
        body = json.dumps(DIALOG).encode()
        head = (
            "POST /hooks/claude-code?prefer=terminal HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {claude.at.tokens['coder']}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        dialog.sendall(head.encode() + body)
        await proposed(claude.at.space)
        record = claude.at.space.proposals[0]
        await until(lambda: not record.state.is_pending)
        while await settled_by(claude, said) == "permitted":
            pass
        report = record.report
        assert (record.state, report and report.outcome) in (
            ("withdrawn", None),
            ("fulfilled", "completed" if said is POST else "not_run"),
        )


async def test_a_permit_left_to_a_terminal_is_settled_by_its_own_agent_alone() -> None:
    def said(hook: dict[str, Any]) -> HookInput:
        return DIALECTS["claude-code"].read(hook, "meup")

    untold: list[str] = []
    race = terminal_race.TerminalRace(Door(), untold.append)
    race.leave(said(DIALOG), "p-1")
    for other in OTHERS:
        await race.settle("claude-code", said(other))
    for same in (POST, STOP):
        await race.settle("codex", said(same))
    assert untold == []
    await race.settle("claude-code", said(STOP))
    assert untold == ["p-1"]


async def settled_by(claude: Host, said: dict[str, Any]) -> str:
    """The state of the only proposal after its agent has said something, and that was taken in."""
    await claude.say(said)
    with anyio.move_on_after(0.2):
        return await settled(claude.at.space)
    return str(claude.at.space.proposals[0].state)


OTHERS: list[dict[str, Any]] = [
    {**STOP, "session_id": "s2"},
    {**STOP, "hook_event_name": "SubagentStop", "agent_id": "a1"},
    {**POST, "tool_input": {"command": "make -n"}},
    {"session_id": "s1", "prompt_id": "p1", "hook_event_name": "Notification"},
    {**PRE, "tool_use_id": "toolu_3", "tool_input": {"command": "ls"}, "agent_id": "a1"},
]


async def test_what_says_nothing_about_it_leaves_it_open() -> None:
    async with host() as claude, anyio.create_task_group() as tasks:
        tasks.start_soon(claude.dialog)
        await proposed(claude.at.space)
        for said in OTHERS:
            await claude.say(said)
        assert claude.at.space.proposals[0].state == "pending"
        await claude.at.space.proposals.get(claude.at.space.proposals[0]).fulfill()
        await claude.answered.wait()
        assert claude.answer is not None
        tasks.cancel_scope.cancel()


async def test_a_call_whose_dialog_never_comes_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is it left as if it might run, where it was permitted."""
    monkeypatch.setattr(terminal_race, "UNHEARD_SECONDS", 0.1)
    monkeypatch.setattr(terminal_race, "FIRST_SECONDS", 0.0)
    async with host() as claude:
        assert verdict(await claude.say(PRE)) == "ask"
        assert await settled(claude.at.space) == "withdrawn"
    async with host(yes) as claude:
        if verdict(await claude.say(PRE)) == "ask":
            state = await settled(claude.at.space)
            report = claude.at.space.proposals[0].report
            assert (state, report and report.outcome) in (
                ("fulfilled", "not_run"),
                ("withdrawn", None),
            )


@pytest.mark.parametrize("junk", [{"session_id": None}, {"tool_name": 5}, {"tool_input": [1]}])
async def test_a_dialog_that_cannot_be_read_is_denied_as_dialogs_are(junk: dict[str, Any]) -> None:
    async with host(yes) as claude:
        await claude.dialog({**DIALOG, **junk})
        assert claude.answer is not None
        assert claude.answer["behavior"] == "deny"
        assert next(iter(junk)) in claude.answer["message"]
        assert not claude.at.space.proposals

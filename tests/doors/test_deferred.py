"""Calls whose agent is sent away, and comes back for the answer."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread

from meup_agent.client.proposal import ProposalRecord
from meup_agent.doors import hook_app
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Hooked, asked, client, hooked, proposed, settled
from tests.doors.test_hooks import CLAUDE, no, verdict, yes
from tests.interaction.people import until
from tests.patience import PATIENCE
from tests.programs import ROOT
from tests.wire import kinds

pytestmark = pytest.mark.anyio

WAIT = "/hooks/claude-code?timeout=60&ttl=50"
DEFER, STAY = "0.01", "50"
POST = {**CLAUDE, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "done"}}
STOP = {"session_id": "s1", "hook_event_name": "Stop"}
END = {"session_id": "s1", "hook_event_name": "SessionEnd"}


async def ask(
    http: httpx.AsyncClient, defer: str | None = STAY, url: str = WAIT, **other: Any
) -> str:
    headers = {} if defer is None else {"meup-defer": defer}
    answer = await http.post(url, json={**CLAUDE, **other}, headers=headers)
    return verdict("claude-code", answer.json())[0]


async def send_away(at: Hooked, http: httpx.AsyncClient) -> None:
    """Have a call deferred, and its agent end."""
    assert await ask(http, DEFER) == "defer"
    await http.post(WAIT, json=END)
    await proposed(at.space)
    assert at.space.proposals[0].state == "pending"


async def decide(at: Hooked, nth: int = 0) -> None:
    await yes(at.space.proposals.get(at.space.proposals[nth]))


@pytest.mark.parametrize("is_early", [True, False], ids=["decided before", "decided after"])
async def test_who_comes_back_gets_the_answer_of_the_one_proposal(is_early: bool) -> None:
    async with asked() as (at, http), anyio.create_task_group() as tasks:
        await send_away(at, http)
        assert await ask(http, DEFER) == "defer"  # it may look in as often as it likes
        if is_early:
            await decide(at)
        else:
            tasks.start_soon(decide, at)
        assert await ask(http) == "allow"
        await http.post(WAIT, json=POST)
        assert await settled(at.space) == "fulfilled"
        assert await ask(http) == "deny"
        assert len(at.space.proposals) == 1


async def test_of_two_that_come_back_one_runs_it() -> None:
    async with asked() as (at, http):
        await send_away(at, http)
        said: list[str] = []

        async def come_back(defer: str | None = STAY) -> None:
            said.append(await ask(http, defer))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come_back)
            tasks.start_soon(come_back)
            # One that is not to be sent away, too.
            tasks.start_soon(come_back, None)
            tasks.start_soon(decide, at)
        assert sorted(said) == ["allow", "deny", "deny"]
        assert len(at.space.proposals) == 1


async def test_an_address_that_says_defer_is_refused() -> None:
    """At a terminal that answer is none, and an address does not know whether there is one."""
    async with asked(yes) as (at, http):
        assert await ask(http, None, f"{WAIT}&defer=1") == "deny"
        assert not at.space.proposals
        assert await ask(http, None) == "allow"


async def test_calls_that_nobody_comes_back_for_keep_no_other_from_being_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook_app, "MAX_DEFERRED", 1)
    monkeypatch.setattr(hook_app, "MAX_WAITING", 1)
    async with asked() as (at, http), anyio.create_task_group() as tasks:
        await send_away(at, http)
        said: list[str] = []

        async def ask_another() -> None:
            said.append(await ask(http, DEFER, tool_use_id="t2"))

        tasks.start_soon(ask_another)
        await proposed(at.space, 2)
        assert await ask(http, DEFER, tool_use_id="t3") == "deny"  # that is too many
        await decide(at, 1)
        await until(lambda: bool(said))
        assert said == ["allow"]


async def test_a_no_is_told_to_who_comes_back() -> None:
    async with asked() as (at, http):
        await send_away(at, http)
        await no(at.space.proposals.get(at.space.proposals[0]))
        await until(lambda: at.space.proposals[0].state == "rejected")
        answer = (await http.post(WAIT, json=CLAUDE)).json()
        assert "not on Fridays" in verdict("claude-code", answer)[1]


async def test_another_call_under_its_id_gets_nothing_of_it() -> None:
    async with asked() as (at, http), client(at, "mallory") as mallory:
        await send_away(at, http)
        assert await ask(http, tool_input={"command": "rm"}) == "deny"
        assert await ask(mallory, DEFER) == "defer"  # a proposal of mallory's own
        await decide(at)
        assert await ask(mallory, DEFER) == "defer"
        assert await ask(http) == "allow"
        assert len(at.space.proposals) == 2


@pytest.mark.parametrize("is_permitted", [True, False])
async def test_a_call_that_its_agent_has_gone_on_without_is_taken_back(is_permitted: bool) -> None:
    """Of several calls at once that it is sent away with, Claude Code asks only one again."""
    async with asked() as (at, http):
        await send_away(at, http)
        if is_permitted:
            await decide(at)
        await http.post(WAIT, json={**STOP, "session_id": "s2"})
        for worker in ({}, {"agent_id": "w1"}):
            event = {"hook_event_name": "SubagentStop"}
            await http.post(WAIT, json={**STOP, **event, **worker})
        assert at.space.proposals[0].state in ("pending", "in_progress", "permitted")
        assert len(at.space.proposals) == 1
        await http.post(WAIT, json=STOP)
        assert await settled(at.space) == ("fulfilled" if is_permitted else "withdrawn")
        report = at.space.proposals[0].report
        assert (report and report.outcome) == ("not_run" if is_permitted else None)


async def test_who_comes_back_and_hangs_up_takes_its_call_back() -> None:
    async with asked() as (at, http):
        await send_away(at, http)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, http)
            with anyio.move_on_after(0.1):  # it withdraws whenever it comes
                await anyio.sleep_forever()
            tasks.cancel_scope.cancel()
        if await settled(at.space) == "withdrawn":
            assert await ask(http, DEFER) == "defer"
            await proposed(at.space, 2)


async def record_of(at: Hooked) -> ProposalRecord:
    (record,) = [each async for each in at.space.proposals.list(state="decided")]
    return record


@pytest.mark.parametrize("defer", [DEFER, STAY, None])
async def test_what_nobody_came_for_is_fetched_once_of_a_gateway_that_was_started_again(
    defer: str | None, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked(journal=tmp_path / "journal.db") as at:
            async with client(at) as http:
                await send_away(at, http)
                await at.space.proposals.get(at.space.proposals[0]).fulfill({"command": "make -n"})
            await at.restart()
            async with client(at) as http:
                assert (await record_of(at)).state == "permitted"
                said = "defer"
                while said == "defer":  # with so little time it may be sent away again
                    said = await ask(http, defer)
                assert said == "allow"
                assert await ask(http, defer) == "deny"
            await at.restart()
            async with client(at) as http:
                assert await ask(http) == "deny"
                await http.post(WAIT, json=POST)  # as it was proposed, and not as permitted
                await until_reported(at)
                record = await record_of(at)
                assert (record.state, record.decided_by) == ("fulfilled", "ann")
                assert record.report is not None
                assert record.report.output.startswith(hook_app.RAN_OTHERWISE)


def copy_journal(journal: Path, left: Path) -> None:
    """Copy a journal as a gateway would find it that was killed at this moment."""
    with closing(sqlite3.connect(journal)) as source, closing(sqlite3.connect(left)) as copy:
        source.backup(copy)


async def test_after_a_kill_the_card_of_a_call_that_waited_ends_and_a_deferred_one_stays(
    tmp_path: Path,
) -> None:
    """The host of the first has had its denial; that of the second comes back."""
    journal, left = tmp_path / "journal.db", tmp_path / "left.db"
    with anyio.fail_after(PATIENCE):
        async with hooked(journal=journal) as at, client(at) as http:
            await send_away(at, http)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(ask, http, None, tool_use_id="t2"))
                await proposed(at.space, 2)
                copy_journal(journal, left)
                tasks.cancel_scope.cancel()
        async with hooked(journal=left) as at, client(at) as http:
            waits = [each async for each in at.space.proposals.list(proposer="coder")]
            assert [each.outlives for each in waits] == [True]
            assert (await record_of(at)).state == "withdrawn"
            await http.post(WAIT, json={**STOP, "agent_id": "w1"})  # it has none such
            await http.post(WAIT, json=STOP)
            listed = [each async for each in at.space.proposals.list(state="decided")]
            assert [each.state for each in listed] == ["withdrawn", "withdrawn"]


async def test_after_a_kill_a_card_whose_agent_was_not_sent_away_ends_with_its_next_call(
    tmp_path: Path,
) -> None:
    """Its host has had its denial, of which the journal has nothing."""
    journal, left = tmp_path / "journal.db", tmp_path / "left.db"
    with anyio.fail_after(PATIENCE):
        async with hooked(journal=journal) as at, client(at) as http:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, http)
                await proposed(at.space)
                copy_journal(journal, left)
                tasks.cancel_scope.cancel()
        async with hooked(journal=left) as at, client(at) as http:
            for other in ({"session_id": "s2"}, {"agent_id": "w1"}):
                assert await ask(http, DEFER, tool_use_id="t2", **other) == "defer"
            waits = [each async for each in at.space.proposals.list(proposer="coder")]
            assert len(waits) == 3
            assert await ask(http, DEFER, tool_use_id="t3") == "defer"
            (record,) = [each async for each in at.space.proposals.list(state="decided")]
            assert (record.id, record.state) == (waits[0].id, "withdrawn")


async def test_a_kept_permit_that_its_agent_has_gone_on_without_is_taken_back_after_a_restart(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked(journal=tmp_path / "journal.db") as at:
            async with client(at) as http:
                await send_away(at, http)
                await at.space.proposals.get(at.space.proposals[0]).fulfill()
            await at.restart()
            async with client(at) as http:
                for other in ({"session_id": "s2"}, {"agent_id": "w1"}):
                    await http.post(WAIT, json={**STOP, **other})
                assert (await record_of(at)).report is None
                await http.post(WAIT, json=STOP)
                await until_reported(at)
                report = (await record_of(at)).report
                assert report is not None
                assert report.outcome == "not_run"
                assert await ask(http) == "deny"


async def until_reported(at: Hooked) -> None:
    with at.space.watch(lambda each: each.kind == kinds.MCP_REPORT) as heard:
        report = (await record_of(at)).report
        while report is None or not report.is_end:
            await anext(heard)
            report = (await record_of(at)).report


@pytest.mark.thorough
@pytest.mark.parametrize("attended", ["0", "1", None])
async def test_the_program_sends_away_only_one_without_a_terminal(attended: str | None) -> None:
    with anyio.fail_after(PATIENCE):
        async with hooked() as at:
            command = [
                sys.executable,
                "-c",
                "from meup_agent.doors.hook_client import main; main()",
            ]
            options = ("claude-code", "--url", at.url, "--timeout", "8", "--defer-after", "0.01")
            env = {"MEUP_TOKEN": at.tokens["coder"], "PYTHONPATH": str(ROOT), **os.environ}
            env.pop("CLAUDE_CODE_SESSION_ATTENDED", None)
            if attended is not None:
                env["CLAUDE_CODE_SESSION_ATTENDED"] = attended

            def run() -> bytes:
                return subprocess.run(
                    [*command, *options],
                    input=json.dumps(CLAUDE).encode(),
                    env=env,
                    capture_output=True,
                    check=True,
                ).stdout

            said = json.loads(await to_thread.run_sync(run))
            assert verdict("claude-code", said)[0] == ("defer" if attended == "0" else "deny")

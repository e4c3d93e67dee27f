"""Many agents at the hooks of one gateway, and attacks on them."""

import json
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from anyio.abc import TaskStatus

from meup_agent import Agent, Proposal, Space
from meup_agent.client.space import take_permit
from meup_agent.doors import permit
from meup_agent.doors.hook_app import HookApp, NotLoggedIn
from meup_agent.gateway.auth import new_token
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Hooked, asked, client, hooked, proposed, settled
from tests.doors.test_hooks import CLAUDE, ask_by, connect, verdict, yes
from tests.interaction.people import PROPOSALS, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

AGENTS = 20


class Login(NamedTuple):
    """A participant and its token."""

    key: str
    token: str


async def test_each_of_many_agents_gets_its_own_answer() -> None:
    names = [f"coder-{number}" for number in range(AGENTS)]

    async def decide(proposal: Proposal) -> None:
        if proposal.arguments["command"] == proposal.proposer:
            await proposal.fulfill({"command": f"echo {proposal.proposer}"})
        else:
            await proposal.reject("policy", explain=f"not for {proposal.proposer}")

    async with hooked(decide, more=dict.fromkeys(names, PROPOSALS)) as at:

        async def ask(name: str, command: str, wanted: str) -> None:
            async with client(at, name) as http:
                # One session and one id for all: a call is known by its participant, too.
                said = {**CLAUDE, "tool_input": {"command": command}}
                answer = (await http.post("/hooks/claude-code", json=said)).json()
                assert verdict("claude-code", answer)[0] == wanted
                assert name in json.dumps(answer)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for number, name in enumerate(names):
                    if number % 2:
                        tasks.start_soon(ask, name, name, "allow")
                    else:
                        tasks.start_soon(ask, name, "make", "deny")


async def test_what_waits_is_denied_once_its_token_is_taken_back() -> None:
    async with hooked() as at, client(at) as http:
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await http.post("/hooks/claude-code", json=CLAUDE))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await proposed(at.space)
                reload_without(at, "coder")
            assert verdict("claude-code", answers[0].json())[0] == "deny"
            assert await settled(at.space) == "withdrawn"  # nobody is asked about it any more
            again = await http.post("/hooks/claude-code", json=CLAUDE)
            assert again.status_code == 401


async def test_what_waits_with_another_token_of_its_participant_goes_on() -> None:
    async with hooked() as at, client(at) as http, client(at) as other:
        second = new_token()
        other.headers["authorization"] = f"Bearer {second}"
        reload_with(at, "coder", at.tokens["coder"], second)
        answers: dict[str, httpx.Response] = {}

        async def ask(by: httpx.AsyncClient, call: str) -> None:
            answers[call] = await by.post(
                "/hooks/claude-code", json={**CLAUDE, "tool_use_id": call}
            )

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, http, "stays")
                await proposed(at.space)
                tasks.start_soon(ask, other, "goes")
                await proposed(at.space, 2)
                reload_with(at, "coder", at.tokens["coder"])
                assert await settled(at.space, 1) == "withdrawn"
                await at.space.proposals.get(at.space.proposals[0]).fulfill()
        said = {call: verdict("claude-code", each.json())[0] for call, each in answers.items()}
        assert said == {"stays": "allow", "goes": "deny"}


async def test_a_call_that_is_asked_about_with_two_tokens_is_one_proposal() -> None:
    async with hooked() as at, client(at) as http, client(at) as other:
        second = new_token()
        other.headers["authorization"] = f"Bearer {second}"
        reload_with(at, "coder", at.tokens["coder"], second)
        answers: list[httpx.Response] = []

        async def ask(by: httpx.AsyncClient, **call: str) -> None:
            answers.append(await by.post("/hooks/claude-code", json={**CLAUDE, **call}))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for each in (http, other):
                    tasks.start_soon(partial(ask, each, tool_use_id=f"of {id(each)}"))
                await proposed(at.space, 2)
                for each in (http, other):
                    tasks.start_soon(ask, each)
                await proposed(at.space, 3)
                for number in range(3):
                    await at.space.proposals.get(at.space.proposals[number]).fulfill()
        assert {verdict("claude-code", each.json())[0] for each in answers} == {"allow"}
        assert len(at.space.proposals) == 3


@pytest.mark.parametrize("ends", ["its token", "its host"])
async def test_a_call_goes_on_while_a_host_with_a_valid_token_waits(ends: str) -> None:
    async with hooked() as at, client(at) as http, client(at) as other:
        second = new_token()
        other.headers["authorization"] = f"Bearer {second}"
        reload_with(at, "coder", at.tokens["coder"], second)
        answers: list[str] = []

        async def ask(
            by: httpx.AsyncClient,
            *,
            task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED,
        ) -> None:
            with anyio.CancelScope() as scope:
                task_status.started(scope)
                answer = await by.post("/hooks/claude-code", json=CLAUDE)
                answers.append(verdict("claude-code", answer.json())[0])

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                first = await tasks.start(ask, http)
                await proposed(at.space)
                tasks.start_soon(ask, other)
                await until(lambda: at.waiting == 2)
                if ends == "its token":
                    reload_with(at, "coder", second)
                else:
                    first.cancel()
                await until(lambda: at.waiting == 1)
                assert at.space.proposals[0].state == "pending"
                await yes(at.space.proposals.get(at.space.proposals[0]))
            assert answers == (["deny", "allow"] if ends == "its token" else ["allow"])
            assert len(at.space.proposals) == 1
            # The last host that waits takes its call with it.
            async with anyio.create_task_group() as tasks:
                call = {**CLAUDE, "tool_use_id": "another"}
                tasks.start_soon(partial(other.post, "/hooks/claude-code", json=call))
                await proposed(at.space, 2)
                tasks.cancel_scope.cancel()
            assert await settled(at.space, 1) == "withdrawn"


async def test_a_deferred_call_goes_on_while_one_of_its_tokens_is_valid() -> None:
    async with hooked() as at, client(at) as http, client(at) as other:
        second = new_token()
        other.headers["authorization"] = f"Bearer {second}"
        reload_with(at, "coder", at.tokens["coder"], second)
        answers: list[httpx.Response] = []

        async def ask(by: httpx.AsyncClient, seconds: str) -> None:
            headers = {"meup-defer": seconds}
            answers.append(await by.post("/hooks/claude-code", json=CLAUDE, headers=headers))

        with anyio.fail_after(PATIENCE):
            await ask(http, "0.01")
            await ask(other, "0.01")
            reload_with(at, "coder", second)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, other, "50")
                await yes(at.space.proposals.get(at.space.proposals[0]))
            said = [verdict("claude-code", each.json())[0] for each in answers]
            assert said == ["defer", "defer", "allow"]
            assert len(at.space.proposals) == 1
            # No other token has asked about this one.
            headers, call = {"meup-defer": "0.01"}, {**CLAUDE, "tool_use_id": "another"}
            await other.post("/hooks/claude-code", json=call, headers=headers)
            reload_without(at, "coder")
            assert await settled(at.space, 1) == "withdrawn"


async def test_a_host_that_asks_as_another_one_hangs_up_is_not_denied_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_taken_back, ask = anyio.Event(), permit.Door.ask

    async def ask_and_end_slowly(door: permit.Door, *args: Any, **options: Any) -> permit.Answer:
        try:
            return await ask(door, *args, **options)
        except anyio.get_cancelled_exc_class():
            is_taken_back.set()
            with anyio.CancelScope(shield=True):
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
            raise

    monkeypatch.setattr(permit.Door, "ask", ask_and_end_slowly)
    with anyio.fail_after(PATIENCE):
        async with hooked() as at:
            first, second = connect(at), connect(at)
            ask_by(first, at)
            await proposed(at.space)
            first.close()
            await is_taken_back.wait()
            ask_by(second, at)
            async with anyio.create_task_group() as tasks:

                async def allow() -> None:
                    await proposed(at.space, 2)
                    await yes(at.space.proposals.get(at.space.proposals[1]))

                tasks.start_soon(allow)
                await anyio.wait_readable(second)
                assert b'"allow"' in second.recv(4096)
                second.close()


async def test_a_permit_is_not_left_as_told_whose_host_is_gone_as_its_token_is_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_go_on = anyio.Event(), anyio.Event()

    async def take_slowly(space: Space, proposal: str) -> None:
        begun.set()
        await may_go_on.wait()
        await take_permit(space, proposal)

    monkeypatch.setattr(permit, "take_permit", take_slowly)
    async with asked() as (at, http), client(at) as other:
        second = new_token()
        other.headers["authorization"] = f"Bearer {second}"
        reload_with(at, "coder", at.tokens["coder"], second)
        await http.post("/hooks/claude-code", json=CLAUDE, headers={"meup-defer": "0.01"})
        await proposed(at.space)
        await yes(at.space.proposals.get(at.space.proposals[0]))
        await until(lambda: at.space.proposals[0].state == "permitted")
        host = connect(at)
        ask_by(host, at, "meup-defer: 50")
        await begun.wait()
        async with anyio.create_task_group() as tasks:
            waits = partial(other.post, "/hooks/claude-code")
            tasks.start_soon(partial(waits, json={**CLAUDE, "tool_use_id": "another"}))
            await proposed(at.space, 2)
            reload_with(at, "coder", second)
            host.close()
            may_go_on.set()
            assert await settled(at.space) == "fulfilled"
            report = at.space.proposals[0].report
            assert report is not None
            assert report.outcome == "not_run"
            tasks.cancel_scope.cancel()


async def test_a_token_that_becomes_void_while_a_request_is_read_asks_nothing() -> None:
    said, is_void = list[Any](), False

    def join(agent: Agent, token: str, /) -> AbstractAsyncContextManager[Space]:
        raise AssertionError("nothing is asked")

    def log_in(_: object) -> Login:
        if is_void:
            raise NotLoggedIn(401, "no participant has this token")
        return Login("demo/coder", "token")

    async def receive() -> dict[str, Any]:
        nonlocal is_void
        if is_void:
            await anyio.sleep_forever()
        is_void = True
        return {"type": "http.request", "body": json.dumps(CLAUDE).encode()}

    async def send(message: Any) -> None:
        said.append(message)

    scope: dict[str, Any] = {"method": "POST", "headers": []}
    scope["path_params"] = {"agent": "claude-code"}
    async with HookApp(join, log_in).run() as app:
        await app(scope, receive, send)
    assert said[0]["status"] == 401


GUESSES = 400


@pytest.mark.thorough
async def test_guesses_of_tokens_do_not_hold_up_an_honest_agent() -> None:
    async with hooked(yes) as at, client(at) as http:
        refused: set[int] = set()

        async def guess(number: int) -> None:
            async with client(at, "nobody") as stranger:
                for each in range(GUESSES // 8):
                    headers = {"Authorization": f"Bearer guess-{number}-{each}"}
                    answer = await stranger.post("/hooks/claude-code", json=CLAUDE, headers=headers)
                    refused.add(answer.status_code)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(guess, number)
                for number in range(20):
                    said = {**CLAUDE, "tool_use_id": f"honest-{number}"}
                    answer = (await http.post("/hooks/claude-code", json=said)).json()
                    assert verdict("claude-code", answer)[0] == "allow"
        assert refused == {401, 429}
        assert len(at.space.proposals) == 20


async def test_the_ids_of_another_session_or_participant_lead_to_no_permit_of_theirs() -> None:
    decided: list[str] = []

    async def decide(proposal: Proposal) -> None:
        decided.append(proposal.proposer)
        await (proposal.fulfill() if len(decided) == 1 else proposal.reject("policy"))

    async with asked(decide) as (at, http), client(at, "mallory") as other:
        first = (await http.post("/hooks/claude-code", json=CLAUDE)).json()
        assert verdict("claude-code", first)[0] == "allow"
        copied = (await other.post("/hooks/claude-code", json=CLAUDE)).json()
        assert verdict("claude-code", copied)[0] == "deny"
        session = {**CLAUDE, "session_id": "another"}
        moved = (await http.post("/hooks/claude-code", json=session)).json()
        assert verdict("claude-code", moved)[0] == "deny"
        another = {**CLAUDE, "tool_input": {"command": "rm -rf /"}}
        reused = (await http.post("/hooks/claude-code", json=another)).json()
        assert verdict("claude-code", reused)[0] == "deny"
        assert decided == ["coder", "mallory", "coder"]


def reload_without(at: Hooked, name: str) -> None:
    """Give a participant another token."""
    reload_with(at, name, new_token())


def reload_with(at: Hooked, name: str, *tokens: str) -> None:
    """Give a participant tokens, in place of those that it has."""
    config = at.gateway.runtime.config
    (space,) = config.spaces
    changed = replace(space.participants[name], tokens=tokens)
    members = {**space.participants, name: changed}
    at.gateway.reload(replace(config, spaces=(replace(space, participants=members),)))

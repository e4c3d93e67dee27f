"""Many agents at the hooks of one gateway, and attacks on them."""

import json
from dataclasses import replace

import anyio
import httpx
import pytest

from meup_agent import Proposal
from meup_agent.gateway.auth import new_token
from tests.doors.hooked import Hooked, hooked, proposed
from tests.doors.test_hooks import CLAUDE, client, verdict
from tests.interaction.people import PROPOSALS
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

AGENTS = 20


@pytest.fixture
def anyio_backend() -> str:
    """The gateway runs on asyncio."""
    return "asyncio"


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
            again = await http.post("/hooks/claude-code", json=CLAUDE)
            assert again.status_code == 401


def reload_without(at: Hooked, name: str) -> None:
    """Give a participant another token."""
    config = at.gateway.runtime.config
    (space,) = config.spaces
    changed = replace(space.participants[name], tokens=(new_token(),))
    members = {**space.participants, name: changed}
    at.gateway.reload(replace(config, spaces=(replace(space, participants=members),)))

"""An existing gateway knows one connection: a second join throws the running agent out."""

from collections.abc import Generator
from functools import partial
from typing import Any

import anyio
import pytest

from meup_agent import Agent
from meup_agent.errors import CannotJoinBeside, CannotObserve, ObservingOnly
from tests.cli.commands import exit_codes
from tests.cli.processes import INTERRUPT, meup, running
from tests.conformance.gateways import ExistingGateway, Version
from tests.patience import PATIENCE

observing = pytest.mark.rule("3.observe.no_echo")
beside = pytest.mark.rule("3.beside.no_echo")
PLACE: Any = {"space": "demo", "token": "my-token"}


@pytest.fixture
def existing(version: Version) -> Generator[ExistingGateway]:
    may = {"reviewer": [{"kind": "*"}, {"kind": "mcp/*"}]}
    tokens = {"my-token": "reviewer"}
    with ExistingGateway(
        version, tokens=tokens, capabilities=may, space="demo"
    ).in_thread() as found:
        yield found


@beside
@pytest.mark.parametrize("participant", [None, "reviewer"])
async def test_none_joins_beside_an_agent(
    existing: ExistingGateway, participant: str | None
) -> None:
    join = partial(Agent("reviewer").join, existing.url, **PLACE)
    with anyio.fail_after(PATIENCE):
        async with join(participant="reviewer") as running:
            with pytest.raises(CannotJoinBeside, match=r"knows no connection beside.*--as"):
                async with join(participant=participant, beside=True):
                    pass
            await running.chat("still here")
            assert running.connected
    assert len([each for each in existing.frames if each.frame.get("type") == "join"]) == 1


@beside
async def test_who_may_take_over_joins_though_not_beside(existing: ExistingGateway) -> None:
    joining = Agent("reviewer").join(existing.url, **PLACE, beside=True, take_over=True)
    with anyio.fail_after(PATIENCE):
        async with joining as space:
            assert space.me == "reviewer"
            await space.chat("hello")


@observing
@pytest.mark.parametrize("participant", [None, "reviewer"])
async def test_observer_sends_no_join_frame(
    existing: ExistingGateway, participant: str | None
) -> None:
    joining = Agent("reviewer").join(existing.url, **PLACE, participant=participant, observe=True)
    with pytest.raises(CannotObserve, match=r"knows no observers.*--take-over"):
        async with joining:
            pass
    assert existing.frames == []


@observing
async def test_who_takes_over_joins_and_says_nothing(existing: ExistingGateway) -> None:
    joining = Agent("reviewer").join(existing.url, **PLACE, observe=True, take_over=True)
    async with joining as space:
        with anyio.fail_after(PATIENCE), space.watch() as envelopes:
            assert (space.me, space.observing) == ("reviewer", False)
            assert [each.id for each in space.participants] == ["reviewer"]
            call = {"method": "tools/call", "params": {"name": "write", "arguments": {}}}
            request = {"jsonrpc": "2.0", "id": 1, **call}
            said = {"1": ("mcp/proposal", call), "2": ("mcp/request", request)}
            for id, (kind, payload) in said.items():
                frame = {"from": "ann", "to": ["reviewer"], "kind": kind, "payload": payload}
                await anyio.to_thread.run_sync(existing.forge, {"id": id, **frame})
            async for envelope in envelopes:
                if envelope.id == "2":
                    break
            with pytest.raises(ObservingOnly):
                await space.chat("hello")
    [join] = existing.frames
    assert join.frame["type"] == "join"


@observing
@pytest.mark.parametrize("command", ["who", "tail"])
def test_a_command_ends_with_one_sentence(existing: ExistingGateway, command: str) -> None:
    variables = {"MEUP_URL": existing.url, "MEUP_SPACE": "demo", "MEUP_TOKEN": "my-token"}
    done = meup(command, "--participant", "reviewer", variables=variables)
    assert (done.returncode, done.stdout) == (exit_codes.NO_CONNECTION, "")
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(f"meup: the gateway {existing.url} knows no observers")
    assert "use the token of a participant without an agent, and --take-over" in sentence
    assert existing.frames == []


@observing
def test_a_command_joins_where_it_may_take_over(existing: ExistingGateway) -> None:
    variables = {"MEUP_URL": existing.url, "MEUP_SPACE": "demo", "MEUP_TOKEN": "my-token"}
    words = ("--take-over", "--participant", "reviewer")
    done = meup("who", *words, variables=variables)
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert done.stdout.startswith("reviewer  you  ")
    assert "only looking on" not in done.stdout
    with running("tail", *words, variables=variables) as tail:
        tail.until("connected to demo")
        assert tail.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert {heard.frame["type"] for heard in existing.frames} == {"join"}

"""`meup tail`: everything that is said, one harmless line each, until the reader or we go."""

import json
import subprocess

import anyio
import pytest

from meup_agent import Agent, Proposal, Space
from meup_agent.gateway import ThreadedGateway
from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.participants import act_as, variables_of
from tests.cli.processes import COMMAND, INTERRUPT, PYTHON, TERMINATE, environment, meup, running
from tests.conformance.gateways import MEUP_V02, ExistingGateway
from tests.patience import PATIENCE, wait_until

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\nalice → bob  forged line\r\x9b31m[red]\u200b"


def test_an_exchange_until_ctrl_c(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    bob = Agent("bob")

    @bob.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @bob.on_proposal(tool="add")
    async def review(proposal: Proposal) -> None:
        await proposal.fulfill({**proposal.arguments, "b": 2})

    async def propose(space: Space) -> None:
        token = gateway.token("bob")
        async with bob.join(gateway.url, space="demo", token=token):
            async with space.propose("bob", "add", {"a": 1, "b": 1}, to="bob") as proposal:
                await proposal.outcome()

    with running("tail", variables=tail_settings) as tail:
        tail.until(f"connected to demo at {gateway.url}; here: no others")
        act_as(gateway, "alice", propose)
        tail.until("alice                    leave")
        assert tail.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert tail.err == ""
    [proposed] = [line for line in tail.out.splitlines() if "proposal" in line]
    [requested] = [line for line in tail.out.splitlines() if "request " in line]
    [responded] = [line for line in tail.out.splitlines() if "response" in line]
    exchange, request = requested.split()[1].split("/")
    assert proposed.split()[1] == exchange
    assert responded.split()[1] == f"{exchange}/{request}"
    assert proposed.endswith("proposal  bob.add(a=1, b=1)  pending")
    assert requested.endswith("request   add(a=1, b=2) (edited)  in progress")
    assert responded.endswith("response  3  fulfilled")
    assert "\x1b" not in tail.out


def test_an_expiry_has_a_line(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    async def propose(space: Space) -> None:
        meta = {"dev.meup/expires_at": "2026-01-01T00:00:00Z"}
        params = {"name": "write", "arguments": {"n": 1}, "_meta": meta}
        payload = {"method": "tools/call", "params": params}
        proposal = await space.send("mcp/proposal", payload, to="bob")
        await anyio.to_thread.run_sync(tail.until, "expiry")
        await space.send("mcp/withdraw", {"reason": "other"}, correlation=proposal)

    with running("tail", variables=tail_settings) as tail:
        tail.until("no others")
        act_as(gateway, "alice", propose)
        tail.until("alice                    leave")
        tail.end(INTERRUPT)
    proposed, expired, withdrawn = (
        line
        for line in tail.out.splitlines()
        if "proposal" in line or "expir" in line or "withdr" in line
    )
    assert proposed.split()[1] == expired.split()[1] == withdrawn.split()[1]
    assert "alice → bob" in expired
    assert expired.endswith("expiry    write(n=1)  expired")
    assert withdrawn.endswith("too late")


def test_json_has_a_line_for_each(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    async def speak(space: Space) -> None:
        await space.chat(HOSTILE, to="bob")

    with running("tail", "--json", variables=tail_settings) as tail:
        tail.until("no others", stream="err")
        act_as(gateway, "alice", speak)
        tail.until('"leave"')
        assert tail.end(TERMINATE) == exit_codes.TERMINATED
    assert tail.out.isascii()
    envelopes = [json.loads(line) for line in tail.out.splitlines()]
    assert [each["kind"] for each in envelopes] == ["system.presence", "chat", "system.presence"]
    assert envelopes[1]["payload"]["message"] == HOSTILE
    assert (envelopes[1]["from"], envelopes[1]["to"]) == ("alice", ["bob"])


def test_a_lost_connection_returns(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    with running("tail", variables=tail_settings) as tail:
        tail.until("no others")
        gateway.restart()
        tail.until("connection lost, dropped without a close frame; dialling again")
        tail.until("connected again")
        tail.until("tailer is in; here: no others")
        assert tail.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert tail.err == ""


def test_where_targets_are_hidden_it_says_what_it_does_not_see() -> None:
    gateway = ExistingGateway(MEUP_V02, tokens={"secret": "tess"})
    with gateway.in_thread() as existing:
        settings = {"MEUP_URL": existing.url, "MEUP_SPACE": "demo", "MEUP_TOKEN": "secret"}
        words = ("tail", "--take-over", "--participant", "tess")
        with running(*words, variables=settings) as tail:
            tail.until("this gateway shows only what is for everybody, or for us")
            existing.forge({"id": "1", "from": "ann", "kind": "chat", "payload": {"text": "hello"}})
            line = next(each for each in tail.until("hello").splitlines() if "hello" in each)
            assert tail.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert "ann " in line
    assert tail.err == ""
    assert "  tess  " in tail.out


def test_a_reader_that_has_enough_ends_it_at_once(tail_settings: dict[str, str]) -> None:
    # Nothing more is said in the space: it must notice without having anything to print.
    command = " ".join(COMMAND)
    done = subprocess.run(
        ["bash", "-c", f"{command} tail | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(tail_settings),
    )
    first, code = done.stdout.splitlines()
    assert "connected to demo" in first
    assert (code, done.stderr) == ("0", "")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"MEUP_TOKEN": "wrong"}, "refused the token"),
        ({"MEUP_SPACE": "nowhere"}, "has no such space"),
        ({"MEUP_URL": "ws://127.0.0.1:1"}, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_no_way_in(tail_settings: dict[str, str], changed: dict[str, str], sentence: str) -> None:
    done = meup("tail", variables={**tail_settings, **changed})
    assert_fails(done, exit_codes.NO_CONNECTION, sentence, "meup: ")


@pytest.mark.rule("3.observe.takes_no_part")
def test_two_run_beside_an_agent(gateway: ThreadedGateway) -> None:
    settings = variables_of(gateway, "alice")

    async def speak(space: Space) -> None:
        with running("tail", variables=settings) as one, running("tail", variables=settings) as two:
            for tail in (one, two):
                await anyio.to_thread.run_sync(tail.until, "here: alice")
            await space.chat("good morning")
            for tail in (one, two):
                await anyio.to_thread.run_sync(tail.until, "good morning")
                assert tail.end(INTERRUPT) == exit_codes.INTERRUPTED
            await space.chat("still here")
        assert one.err == two.err == ""

    act_as(gateway, "alice", speak)


STUCK = """
import os, subprocess, sys
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True:
        os.write(writer, b"x" * 65536)
except BlockingIOError:
    pass
os.set_blocking(writer, True)
os.dup2(writer, 1)
os.close(writer)
from meup_agent.cli import main
main()
"""


def test_it_hears_by_a_stuck_pipe(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    with running("tail", command=(*PYTHON, "-c", STUCK), variables=tail_settings) as tail:

        async def until_it_is_in() -> None:
            await wait_until(lambda: gateway.counters.observed)

        anyio.run(until_it_is_in)
        assert tail.end(TERMINATE) == exit_codes.TERMINATED

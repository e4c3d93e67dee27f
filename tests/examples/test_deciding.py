"""Examples of deciding: policies, four eyes, learning, a person by hand, and stories of it."""

import asyncio
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from meup_agent import Agent, Proposal, Space
from meup_agent.approval import load_policy
from meup_agent.approval.policy.cases import load_cases
from meup_agent.approval.policy.file import findings_of
from meup_agent.gateway import ThreadedGateway
from tests.bench.suggest import write
from tests.cli.audited import past
from tests.cli.participants import act_as
from tests.cli.processes import environment
from tests.examples.test_examples import run_example
from tests.patience import PATIENCE
from tests.programs import ROOT, program


@pytest.mark.parametrize("name", ["policy_cases", "coding_agent_cases"])
def test_the_policy_is_good_and_decides_its_cases(name: str) -> None:
    cases, path = load_cases(ROOT / "examples" / f"{name}.yaml")
    assert path is not None
    policy = load_policy(path)
    assert findings_of(policy) == []
    assert len(cases) == 7
    assert [said for each in cases if (said := each.failure(policy))] == []


def output_of(name: str, *options: object) -> str:
    with program([ROOT / "examples" / name, *map(str, options)]) as done:
        assert done.wait() == 0, done
        return "\n".join(done.stdout)


def test_reads_are_allowed_and_the_rest_is_asked() -> None:
    assert output_of("allow_reads.py").splitlines() == [
        "the text of docs/plan.md",
        "paula is asked: write_file docs/plan.md",
        "2 letters are in docs/plan.md",
    ]


def test_four_eyes_see_more_than_two() -> None:
    first, second, third, last = output_of("four_eyes.py").splitlines()
    assert first.startswith("lead: lead proposed it, and a proposer's vote never counts")
    assert second == "security votes: {'security': 'approve'}, open"
    assert third == "oncall votes: {'security': 'approve', 'oncall': 'approve'}, approved"
    assert last == "1.4 is deployed"


def test_rules_are_learned_from_a_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    asyncio.run(write(journal, 1_200))
    found = output_of("learn.py", journal, "demo", 5)
    assert "allow tool_0 {'path': " in found
    assert "decisions, 0 changed" in found


def test_a_person_approves_by_hand() -> None:
    assert output_of("approve_by_hand.py").splitlines() == [
        "bot proposes write_file {'path': 'docs/plan.md', 'content': 'one line'}",
        "  look twice: tools marks it as destructive",
        "done: 8 letters are in docs/plan.md",
        "bot proposes write_file {'path': '/etc/hosts', 'content': 'one line'}",
        "  look twice: tools marks it as destructive",
        "  last time: arguments.path was docs/plan.md",
        "rejected: unsafe, only in docs, please",
    ]


def test_an_edit_is_checked_and_told() -> None:
    first, second, third = output_of("edit_before_approve.py").splitlines()
    assert first.startswith("not sent: tool 'send' of 'tools' does not take these arguments")
    assert second == "lead made team@example.org of everybody@example.org"
    assert third == "sent to team@example.org: hello"


@pytest.mark.parametrize("rejected", ["", "back_up", "migrate", "announce"])
def test_cascade_ends_with_the_rejected_step(gateway: ThreadedGateway, rejected: str) -> None:
    tools, fulfiller, ran = Agent("tools"), Agent("fulfiller"), list[str]()

    for step in ("back_up", "migrate", "restart", "announce"):

        async def work(step: str = step) -> str:
            ran.append(step)
            return "done"

        tools.tool(name=step)(work)

    @fulfiller.on_proposal
    async def decide(proposal: Proposal) -> None:
        if proposal.tool == rejected:
            await proposal.reject("policy")
        else:
            await proposal.fulfill()

    async def act(_: Space) -> None:
        token = gateway.token("fulfiller")
        async with fulfiller.join(gateway.url, space="demo", token=token):
            await anyio.to_thread.run_sync(lambda: run(expected))

    def run(expected: list[str]) -> None:
        with run_example(gateway, "cascade.py", "proposer") as proposer:
            assert proposer.wait() == 0
        assert proposer.stdout == expected

    steps = ["back_up", "migrate", "restart", "announce"]
    at = steps.index(rejected) if rejected else len(steps)
    expected = [f"{step}: done" for step in steps[:at]]
    expected += [f"{step}: rejected by fulfiller (policy)" for step in steps[at : at + 1]]
    expected += [f"{step}: withdrawn (policy)" for step in steps[at + 1 :]]
    act_as(gateway, "tools", act, tools)
    assert ran == steps[:at]


def test_of_two_reviewers_one_is_first() -> None:
    with program([ROOT / "examples/two_reviewers.py"], {}) as story:
        assert story.wait() == 0
    lines = story.stdout
    assert lines.count("tools: paid 5") == 1
    assert lines.count("proposer: paid 5") == 1
    decided = sorted(line.partition(": ")[2] for line in lines if line[:3] in ("ada", "ben"))
    assert decided == ["approved, paid 5", "the other one was first"]


def test_read_a_journal(tmp_path: Path) -> None:
    with past(tmp_path) as found:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "read_a_journal.py"), found.journal, "demo"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(),
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "p-fulfilled alice fulfilled bob",
        "p-rejected alice rejected bob",
        "p-withdrawn alice withdrawn alice",
        "p-twice carol in_progress nobody yet",
        "p-twice alice pending nobody yet",
    ]

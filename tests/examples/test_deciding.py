"""The examples of deciding: policies, four eyes, learning, and a person by hand."""

import asyncio
from pathlib import Path

import pytest

from meup_agent.approval import load_policy
from meup_agent.approval.policy.cases import load_cases
from meup_agent.approval.policy.file import findings_of
from tests.bench.suggest import write
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

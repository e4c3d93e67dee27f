"""The examples of deciding as a person: by hand, and with an edit."""

from tests.examples.test_policy import output_of


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

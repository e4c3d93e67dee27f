"""Bypasses that attacks on this project found: each has a test of its own, which failed before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Finding:
    """A bypass that is closed.

    Attributes:
        title: The bypass, in a few words.
        was: How it went, while it was open.
        here: What stops it.
        test: The test that repeats it: its file and its name, as pytest has them.
    """

    title: str
    was: str
    here: str
    test: str


FINDINGS: Final[tuple[Finding, ...]] = (
    Finding(
        "Arguments that are no object are shown as none",
        "A call with a list, a text or a number as its arguments was shown as `run()` on the card,"
        " in the terminal and in the audit, and the approval sent the real thing on.",
        "A call that readers would read differently is refused before any of them sees it; what"
        " stands beside the arguments is shown wherever the call is.",
        "tests/interaction/test_malformed_calls.py::test_a_malformed_proposal_is_told_to_its_sender_alone",
    ),
    Finding(
        "An integer that JavaScript rounds",
        "9007199254740993 was approved, a server in Node got …992, and the call had no digest that"
        " could have told.",
        "A proposal with an integer beyond ±(2^53 − 1), and a member called `__proto__`, is"
        " refused, and an edit to such a call too. Random calls are compared at each reader, down"
        " to servers in Python, in Node and of the official SDK for TypeScript.",
        "tests/mcp/bridge/test_readers.py::test_all_readers_of_a_call_agree",
    ),
    Finding(
        title="An inbox calls a tool by itself",
        was=(
            "An MCP server had tools named `vote` and `waiting`. Open inboxes and consoles took its"
            " participant for a reviewer, and called `waiting` again and again, with the person's"
            " capabilities and without a proposal."
        ),
        here=(
            "No name of a tool makes a reviewer. What an inbox asks by itself are methods of their"
            " own, no tool calls; it asks those who may decide, and no bridge passes them on."
        ),
        test="tests/cli/test_up_servers.py::test_no_tool_of_a_server_is_called_by_an_inbox",
    ),
)

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
    Finding(
        title="An edit passes by a reviewer whose capabilities name its addressees",
        was=(
            "Reviewers judge a call that a person edits. One whose capabilities were limited to the"
            " call's own target, to the edited arguments or to the proposer of what it may reject"
            " was not asked, and an edit that its rules deny ran."
        ),
        here=(
            "Each who may carry the call out at its target, as it was or as it was edited, or may"
            " reject it to its proposer, must judge it or say that it is no reviewer."
        ),
        test=(
            "tests/approval/test_edit_check.py"
            "::test_a_reviewer_that_may_carry_it_out_at_its_target_alone_judges_edits"
        ),
    ),
    Finding(
        title="A flood hides that a call takes votes",
        was=(
            "A reviewer tells inboxes which proposals take votes, in a list that has an end. A"
            " proposer filled it, and inboxes offered to approve what several people should have"
            " voted about."
        ),
        here=(
            "What takes votes is listed first, and of each proposer as much as of the others; an"
            " inbox goes on asking each reviewer that it has found."
        ),
        test=(
            "tests/approval/test_reviewer_flood.py"
            "::test_a_flood_leaves_out_no_proposal_of_another_that_takes_votes"
        ),
    ),
    Finding(
        title="A vote counts in another space",
        was=(
            "A reviewer in Python that joined two spaces listed the proposals of both in each, and"
            " counted the votes of participants that had a voter's name in the other one."
        ),
        here="A reviewer is in one space at a time, and knows nothing of the last one in the next.",
        test=("tests/approval/test_votes.py::test_a_reviewer_counts_the_votes_of_one_space_alone"),
    ),
    Finding(
        "Whoever listens at the port gets the tokens",
        "After a crash another user of the machine listened at the gateway's port. A running"
        " `meup mcp` and each `meup inbox` dialled again and sent their tokens, which were good"
        " at the next start: with that of the person who decides, the stranger approved.",
        "`meup up` and `meup gateway --dev` listen at a Unix socket in a folder of their user"
        " alone, and our programs dial that. At a port, on Linux, the owner of the other end of the"
        " connection is looked up before the first byte, and another user is sent nothing.",
        "tests/cli/test_own_socket.py::test_after_a_crash_who_takes_the_port_gets_no_token",
    ),
    Finding(
        "Strangers behind a proxy are the participant of the process",
        "`meup mcp --http` with `MEUP_TOKEN` took a client without a token for its own participant,"
        " if the connection came from this machine. A proxy on the machine brought strangers in"
        " so, and one that adds no header leaves no sign of them; `Host: localhost:1.evil.com`"
        " passed for this machine.",
        "Over TCP each client sends a token. `--anonymous` serves clients of this machine without"
        " one, and even then refuses headers that proxies add; the port of a `Host` is a number.",
        "tests/mcp/server/test_http_command.py::test_a_client_without_a_token_is_nobody",
    ),
    Finding(
        "A cancel that overtakes its call is lost",
        "An MCP client over HTTP cancels on another connection than it calls. A cancel that came"
        " first named no call yet, was dropped, and the call ran in full: 9 of 10 that were sent at"
        " once.",
        "The session and id of what was cancelled are remembered for a minute, by token, and a call"
        " that comes to them is answered as cancelled and not begun.",
        "tests/mcp/server/test_cancellation.py::test_a_cancel_that_overtakes_its_call_keeps_it_from_beginning",
    ),
    Finding(
        title="What was rejected runs after a restart",
        was=(
            "A fulfiller rejected a proposal as unsafe, and its proposer did not withdraw. When the"
            " fulfiller and the executor had been started again, the proposal was told to the new"
            " process as one that nobody had looked at, and its handler fulfilled it; a proposal"
            " that a person had rejected with `meup inbox reject` ran so, too."
        ),
        here=(
            "What a participant has rejected is rejected for each of its processes: the gateway"
            " keeps it, over its own restarts as well, tells it to a newcomer with the proposal,"
            " and refuses what the participant would fulfill, or carry out, afterwards."
        ),
        test=(
            "tests/interaction/test_own_rejections.py"
            "::test_what_was_rejected_before_a_restart_does_not_run_after_it"
        ),
    ),
    Finding(
        title="A killed proposer's call runs twice",
        was=(
            "A proposer was killed and started again, and proposed again. Its old proposal stayed"
            " open beside the new one, and nothing told them apart: who approved both had the call"
            " carried out twice. A tool that ran for the killed process ran to its end."
        ),
        here=(
            "A process that begins anew ends what the one before it had open: the gateway withdraws"
            " its proposals and cancels what runs for it, over its own restarts as well."
        ),
        test=(
            "tests/interaction/test_dead_proposers.py"
            "::test_what_a_killed_process_proposed_does_not_run_beside_its_twin"
        ),
    ),
    Finding(
        title="A clock that is put back makes an expired proposal pending",
        was=(
            "The gateway compared a deadline with the machine's clock at each moment. When that was"
            " put back, while the gateway ran or while it did not, a request for a proposal that"
            " had expired for everybody was accepted."
        ),
        here=(
            "A gateway's time never goes back: it goes on as measured, and after a restart from the"
            " last entry of its journal."
        ),
        test=(
            "tests/protocol/space/test_expired_for_good.py"
            "::test_a_clock_that_was_put_back_over_a_restart_revives_nothing"
        ),
    ),
    Finding(
        title="A participant that looks like another",
        was=(
            "A participant that could invite brought in one whose name differed from a reviewer's"
            " by a Cyrillic letter, or by case alone. Screens marked the letter, and nothing marked"
            " the case."
        ),
        here=(
            "Names of one space that look alike are refused, in its configuration and in"
            " invitations, and so are letters of several scripts in one name."
        ),
        test=(
            "tests/protocol/space/test_invitations.py"
            "::test_who_looks_like_another_participant_is_not_invited"
        ),
    ),
)

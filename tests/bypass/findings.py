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
            "Proposals that take votes are listed first, and proposers take turns; an"
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
        title="One approval runs at two owners of a tool",
        was=(
            "A terminal approves without naming who carries the call out. Each participant that had"
            " the tool ran it, so that one approval was used twice."
        ),
        here=(
            "The gateway knows from the lists of tools that pass it who has the tool, and addresses"
            " the approval to the only one. Where there are several it refuses it, and names them."
        ),
        test=(
            "tests/approval/test_plain_proposals.py"
            "::test_an_approval_without_to_runs_at_no_more_than_one_owner"
        ),
    ),
    Finding(
        title="A denied participant is reached by leaving its name out",
        was=(
            "A rule that denies a participant says nothing of a proposal that names none. Once"
            " approved, such a call went to that participant, as the only one that has the tool."
        ),
        here=(
            "A policy decides a proposal without a participant as if it named the only one that has"
            " the tool, and lets no such proposal pass without a person."
        ),
        test=(
            "tests/approval/test_plain_proposals.py"
            "::test_who_is_denied_is_not_reached_by_leaving_its_name_out"
        ),
    ),
    Finding(
        title="What has run is offered for approval again",
        was=(
            "Audit and inbox took the executor that a proposal of the published versions names in"
            " `to` for a decider. Where its client counted ids anew, what had run showed as pending"
            " or withdrawn, and was offered for approval."
        ),
        here=(
            "The executor is read in one place, by the dialect that the proposal says; the audit"
            " and members of other dialects know it also of a sender that is away."
        ),
        test=(
            "tests/protocol/test_audit_executors.py"
            "::test_each_of_several_under_one_id_shows_what_became_of_it"
        ),
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
    Finding(
        "A rule that denies a folder leaves its hidden files alone",
        "One matcher served both directions, so that too little was safe for an `allow` and a hole"
        " in a `deny`: before an `allow` of the tool, `deny` of `/home/ann/**` let"
        " `/home/ann/.ssh/id_rsa` and `/home/ann/./x` run, `rm *` let `rm -rf /` run, and"
        " `*DROP TABLE*` any statement with a slash. So did `ask`, `quorum` and `limit`.",
        "What holds back is read widely: it takes all that a reader would say it names, in any"
        " case, by any steps and with any text for a wildcard. What lets through stays narrow.",
        "tests/approval/test_rule_readings.py::"
        "test_every_rule_that_holds_back_takes_what_a_reader_would_say",
    ),
    Finding(
        "A capability for all but a folder reaches into it",
        "`!/etc/**` was the complement of what `/etc/**` lets through, and so allowed"
        " `/etc/.ssh/id`.",
        "Behind a `!` the pattern has the other reading: what is excepted from a capability is"
        " excepted in all its spellings.",
        "tests/protocol/test_readings.py::test_what_a_negation_excepts_is_read_widely",
    ),
    Finding(
        "An allowed folder is left by backslashes",
        "`docs/**` allowed `docs/a\\..\\..\\x`, which a tool on Windows takes for a path out of the"
        " folder.",
        "A wildcard beside letters takes no backslash, and none a dot that comes behind one.",
        "tests/approval/test_rule_readings.py::"
        "test_an_allowed_path_leaves_no_folder_where_a_backslash_parts_it",
    ),
    Finding(
        "An allowed address is the last of a list",
        'The example `allow: {tool: send_mail, arguments: {to: "*@example.com"}}` allowed'
        " `eve@evil.com,bob@example.com`, and a line end with `Bcc:` behind it.",
        "A wildcard beside letters takes no comma, semicolon, line end or control character, and"
        " no blank where the pattern has no slash.",
        "tests/approval/test_rule_readings.py::test_an_allowed_text_is_no_list_of_texts",
    ),
    Finding(
        "An argument that no rule looks at is sent along",
        "An `allow` with arguments left every other argument free: the same example allowed"
        " `cc: eve@evil.com`.",
        "An `allow` that names arguments takes no call with others, unless it says `others`.",
        "tests/approval/test_rule_readings.py::"
        "test_an_allow_takes_no_argument_that_it_does_not_name",
    ),
    Finding(
        "A default that the rules do not see runs",
        "Defaults in `allOf`, behind `$ref` or in nested objects were not filled in, so a `deny`"
        " about an argument was passed by leaving the argument out.",
        "All defaults that hold in any case are arguments to every rule; behind a rule about one"
        " that may hold, people are asked.",
        "tests/approval/test_argument_schema.py::test_a_deny_sees_a_default_wherever_it_stands",
    ),
    Finding(
        "Half of a policy allows more than all of it",
        "A policy file that a full disk or a slow editor had cut off was loaded wherever the rest"
        " was YAML: of 356 places to cut one at, 25 made a policy that allowed more.",
        "The last key of a policy is `end: true`, and its last line has an end. A changed file"
        " counts once it has stood still; until then what the rules allow is asked about.",
        "tests/approval/test_watched_policy.py::test_a_file_that_is_cut_off_anywhere_does_not_load",
    ),
    Finding(
        "A full limit asks about what the rules behind it deny",
        "Over its count a `limit` decided alone, so that `then: ask` before a `deny` asked people"
        " about calls that were denied before the limit was full.",
        "A full limit gives the stricter of `then` and of what the rules behind it decide.",
        "tests/approval/test_rule_readings.py::test_a_limit_that_is_full_makes_no_decision_milder",
    ),
    Finding(
        "An argument in capitals is another one to the rules, and the same to the tool",
        "Where a schema takes any argument, a call with `Path` beside `path` was seen by no rule"
        " about `path`; servers that read JSON without regard to case take the last one.",
        "A rule that holds back takes the argument in any spelling. No call is allowed with one"
        " that is nearly one of its tool's, or with two that are nearly alike: people are asked.",
        "tests/approval/test_argument_schema.py::"
        "test_an_argument_that_is_nearly_one_of_the_tool_is_asked_about",
    ),
    Finding(
        title="A server changes its tool after the tool was allowed by a rule",
        was=(
            "Behind `meup up --servers` a server gave its tool a new argument `cmd` and another"
            " description, while it ran or after a restart. `allow: {tool: read}` let the next call"
            " run, and the model read the new description. Only `meup bridge` could pin, if asked"
            " to."
        ),
        here=(
            "`meup up` keeps tools as they were at first sight. A changed schema or annotation, or"
            " a new tool, is asked about whatever the rules say, with the difference, until a"
            " person accepts it; models read the accepted texts until then."
        ),
        test="tests/cli/test_up_pins.py::test_tool_that_changed_after_a_restart_is_asked_about",
    ),
    Finding(
        title="A call that was allowed before its tool changed runs after it",
        was=(
            "A rule allowed a call, or a capability granted it, the server changed its tool, and"
            " the request ran with what the tool was by then."
        ),
        here=(
            "The bridge runs a call of a changed tool only for who has said that it has seen this"
            " form, for one proposal. A capability for the call does not allow that."
        ),
        test="tests/mcp/bridge/test_tool_changes.py::test_call_that_was_accepted_runs_in_no_later_form",
    ),
    Finding(
        title="Votes about a tool count for what it has become",
        was=(
            "Of two voters one approved before the server changed its tool; with the second vote"
            " the changed tool ran."
        ),
        here="Votes about another form of the tool are void, and people are told so.",
        test="tests/mcp/bridge/test_tool_changes.py::test_votes_about_another_form_do_not_count",
    ),
    Finding(
        title="A folder whose name has a wildcard hides where a path leads",
        was=(
            "A `deny` of `/etc/**` left `/x*/../etc/passwd` alone, and an `allow` of `!/etc/**`"
            " took it: the star of the path was read as if a pattern had it, and `..` was kept"
            " behind it."
        ),
        here=(
            "Only in a pattern may a step with a wildcard be several. In a path it is a name, and"
            " `..` takes it away."
        ),
        test=(
            "tests/approval/test_rule_readings.py"
            "::test_a_folder_whose_name_has_a_wildcard_leads_past_no_deny"
        ),
    ),
    Finding(
        title="`..` takes a drive or a host away",
        was=(
            r"`C:\..\Windows\y` and `https://host/../admin/x` were read as `Windows/y` and"
            r" `https:/admin/x`, so a `deny` of `C:\Windows\*` or `https://host/admin/**` left them"
            " alone. Systems and browsers keep the drive and the host."
        ),
        here=(
            "A drive, and the scheme and host of a URL, are the root of a path, which no `..`"
            " leaves. A rule that holds back takes the path without a root, too, since some systems"
            " have no drives."
        ),
        test=(
            "tests/approval/test_rule_readings.py"
            "::test_no_step_back_from_a_drive_or_a_host_leads_past_a_deny"
        ),
    ),
    Finding(
        title="From nine rules on a `deny` of a path with backslashes is passed",
        was=(
            r"With nine rules and more those that may match are looked up by the beginnings of"
            r" their patterns. For `.\secret\*` these lacked `secret`, so `secret\x` was allowed"
            " although the `deny` takes it."
        ),
        here="A pattern is found by its beginning in each of the forms in which it is read.",
        test=(
            "tests/approval/test_rule_readings.py"
            "::test_a_backslash_parts_a_path_among_many_rules_as_among_few"
        ),
    ),
    Finding(
        title="A number passes a rule about a text inside an object or a list",
        was=(
            'A `deny` of `opts: {mode: "6"}` left the number `6` there alone, and one of `kill *`'
            ' the command `["kill", 9]`. Other types were asked about only where the argument'
            " itself had one."
        ),
        here=(
            "An allow behind a rule that would take the value as another type is asked about, at"
            " any level. A command is compared with its numbers, and without."
        ),
        test=(
            "tests/approval/test_near_misses.py"
            "::test_a_value_of_another_type_is_asked_about_wherever_it_stands"
        ),
    ),
    Finding(
        title="An edit passes by a reviewer whose approver speaks a published dialect",
        was=(
            "In `mew/v0.4` and `meup/v0.2` a proposal names its executor where others name who"
            " decides. `meup fulfill --edit` of such a participant took the executor for the only"
            " reviewer, and an edit that a rule denies ran."
        ),
        here=(
            "The command reads proposals in one dialect, whatever its participant speaks, and"
            " those who judge an edit are read from a proposal by its dialect."
        ),
        test=(
            "tests/cli/inbox/test_fulfill_dialects.py"
            "::test_an_edit_is_judged_in_the_approvers_dialect"
        ),
    ),
    Finding(
        title="Votes about a tool as it was are restored for what it is now",
        was=(
            "The server changed its tool between two votes, and the reviewer was started again, or"
            " its policy was saved with an unrelated rule, or one voter accepted the change: the"
            " first vote counted on, and with the second one the changed tool ran. A voter with an"
            " old list of tools voted for a form that it was not shown."
        ),
        here=(
            "Votes are kept under the form of their tool, in memory and in the file. A vote says"
            " which form was seen, and counts for no other."
        ),
        test=(
            "tests/mcp/bridge/test_tool_changes.py"
            "::test_votes_about_another_form_count_after_no_restart"
        ),
    ),
    Finding(
        title="An approval without an executor goes to who lists the tool first",
        was=(
            "A participant that left, and came back, had no tools until its next list. Another one"
            " listed a tool of its name before that, and approvals without `to` went to it alone."
        ),
        here=(
            "What a participant has listed counts until its next list, also when it was away. Of"
            " two that have the tool none gets the call, and the approver is asked to choose."
        ),
        test=(
            "tests/protocol/space/test_executors.py"
            "::test_one_that_came_back_shares_its_tools_with_none_that_lists_them_first"
        ),
    ),
    Finding(
        title="The id of one proposal approves another that begins with it",
        was=(
            "Commands take the beginning of an id. Where the gateway could not tell of a proposal,"
            " since it was too large to be kept or was forgotten, `meup fulfill ID --yes` carried"
            " out that of an attacker who had added a letter to its id. So did `meup inbox approve"
            " ID --yes`, once the one that was meant was decided."
        ),
        here=(
            "A whole id is the beginning of no other, also that of a decided proposal, and no"
            " beginning counts where the gateway has left out one that may be meant."
        ),
        test=(
            "tests/interaction/test_proposal_lists.py::test_a_whole_id_is_the_beginning_of_no_other"
        ),
    ),
    Finding(
        title="A proposer chooses the process that runs what was approved",
        was=(
            "Terminals repeat a proposal's `_meta` in their request. One that named an exchange"
            " which a connection beside the executor's agent had begun was answered there: the"
            " approved call ran in that other program, and not at the agent."
        ),
        here=(
            "A request that carries a proposal out is for the agent, whatever else it names, and"
            " the gateway refuses a proposal with such a name in its `_meta`."
        ),
        test=(
            "tests/interaction/test_beside.py"
            "::test_what_was_approved_runs_at_the_agent_whatever_it_names"
        ),
    ),
    Finding(
        title="A restart forgets what an agent of a published dialect approved",
        was=(
            "Such an agent makes the call itself and answers the proposal with its result. The"
            " gateway took that for the decision, but its journal did not say so: after a restart"
            " the proposal was pending, and a second approval ran it again."
        ),
        here=(
            "The entry of such a response is marked, and a restart lets every entry take effect as"
            " it did when it was decided."
        ),
        test=(
            "tests/protocol/space/test_published_answers.py"
            "::test_what_such_a_response_decided_is_decided_after_a_restart"
        ),
    ),
    Finding(
        title="An argument's name reads as other arguments",
        was=(
            'An argument named `path="safe.txt", x` was shown in terminals, audits and texts for'
            ' models as two: `read(path="safe.txt", x=1, …)`. The name of a tool could end the call'
            " and begin another in the same way."
        ),
        here=(
            "Within a call, a name with any other characters than those of usual names is in"
            " quotation marks."
        ),
        test="tests/test_escape.py::test_a_name_is_read_as_one_name",
    ),
    Finding(
        title="An ideographic full stop leads past the deny of a host",
        was=(
            "`https://evil。example/` was no address of `https://evil.example/**` to a rule"
            " that denies it, and a client that takes the address reads the character as a dot."
        ),
        here="What holds back reads that character as a dot, in each of its widths.",
        test="tests/approval/test_rule_readings.py::test_each_dot_of_a_host_is_one_for_a_deny",
    ),
)

"""`meup inbox list`, `show`, `approve`, `reject` and `vote`: one command, one decision."""

import json
import os
from typing import Any

import pytest

from meup_agent.cli.render.card import MAX_SHOWN
from tests.cli.commands import exit_codes, run
from tests.cli.inbox.conftest import Office, Person
from tests.cli.participants import post
from tests.cli.stage import HOSTILE
from tests.spaces import AbsenceTracker
from tests.wire import build_proposal


def listed(meup: Person) -> dict[str, dict[str, Any]]:
    """The waiting proposals, by id."""
    done = meup("list", "--json")
    assert (done.code, done.err) == (0, "")
    return {each["proposal"]: each for each in json.loads(done.out)["proposals"]}


def propose_by_http(office: Office, by: str, id: str, **arguments: Any) -> str:
    """Propose a call of write under an id."""
    call = {"name": "write", "arguments": arguments}
    payload = build_proposal("tools/call", call, target="files", expires=None)
    post(office.gateway, by, id=id, kind="mcp/proposal", to=["alice"], payload=payload)
    return id


def test_a_proposal_is_listed_shown_and_approved(meup: Person, office: Office) -> None:
    later = office.propose("write", path="b.md", seconds=7_200)
    first = office.propose("write", path="a.md", text="x\ny")
    assert list(listed(meup)) == [first, later]
    line = meup("list").out.splitlines()[0]
    assert line.startswith(f"{first[:8]}   ")
    assert 'left  bot: files.write(path="a.md", text="x\\ny")  [approve, reject]' in line
    shown = meup("show", first[:8])
    assert "you may: approve, reject" in shown.out
    assert 'path: "a.md"' in shown.out
    assert "  │ x\n" in shown.out
    assert "key f" not in shown.out, "a shell has no keys"
    done = meup("approve", first[:8], "--yes")
    assert (done.code, done.out) == (0, f"{first}: wrote a.md\n")
    # What it has shown before is on standard error, so that a program gets the result alone.
    assert 'path: "a.md"' in done.err
    assert office.calls == [{"path": "a.md", "text": "x\ny"}]
    again = meup("show", later)
    assert "Differs from the last one, fulfilled by alice:" in again.out
    assert '- "a.md"' in again.out
    assert "1 fulfilled of its last 1" in again.out
    office.withdraw(later)


def test_several_are_approved_by_their_list_once_each(meup: Person, office: Office) -> None:
    ids = [office.propose("write", path=path) for path in ("a", "b", "c")]
    done = meup("approve", ids[0], ids[1], ids[0], "--yes", "--json")
    results = json.loads(done.out)["proposals"]
    assert [(each["proposal"], each["result"]) for each in results] == [
        (ids[0], "wrote a"),
        (ids[1], "wrote b"),
    ]
    assert sorted(each["path"] for each in office.calls) == ["a", "b"]
    assert list(listed(meup)) == [ids[2]]
    office.withdraw(ids[2])


def test_one_that_fails_is_told_and_has_its_exit_code(meup: Person, office: Office) -> None:
    fine, fails = office.propose("write", path="a"), office.propose("wipe", disk="sda")
    done = meup("approve", fine, fails, "--yes")
    assert done.code == exit_codes.TOOL_FAILED
    assert f"{fine}: wrote a" in done.out
    assert "1 of 2 approvals failed" in done.err
    # Below all that was shown, where it has not scrolled away.
    assert f"! {fails[:8]}: files marks it as destructive" in done.err.split("approve it")[-1]


def test_one_alone_that_fails_is_told_once(meup: Person, office: Office) -> None:
    done = meup("approve", office.propose("wipe", disk="sda"), "--yes")
    assert done.code == exit_codes.TOOL_FAILED
    assert done.err.count("ValueError: sda") == 1


def test_nothing_is_approved_unasked_without_a_terminal(meup: Person, office: Office) -> None:
    proposal = office.propose("write", path="a")
    done = meup("approve", proposal)
    assert done.code == exit_codes.USAGE
    assert "give --yes to do it" in done.err
    assert (office.calls, list(listed(meup))) == ([], [proposal])
    office.withdraw(proposal)


def test_a_long_call_is_shown_whole_before_it_is_approved(
    meup: Person, office: Office, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "x" * MAX_SHOWN + "the end"
    proposal = office.propose("write", path="a", text=text)
    assert "[cut: 4,000 characters are shown; meup inbox show shows all]" in meup("list").out
    for verb in (("show",), ("approve", "--yes")):
        done = meup(verb[0], proposal, *verb[1:])
        assert done.code == 0
        assert f'{text}"\n' in done.out + done.err
        assert "more characters" not in done.out + done.err
    assert office.calls == [{"path": "a", "text": text}]
    assert run(["audit", "--proposal", proposal]) == 0
    assert f'bot proposed files.write(path="a", text="{text}")' in capfd.readouterr().out


def test_ids_that_begin_alike_are_told_apart(meup: Person, office: Office) -> None:
    ids = [f"the-same-beginning-{number}-and-end" for number in (1, 2)]
    for id in ids:
        propose_by_http(office, "bot", id, path="a")
    listing = meup("list").out.splitlines()
    assert sorted(line.split()[0] for line in listing) == [each[:20] for each in ids]
    assert meup("reject", *ids, "--reason", "busy").code == 0


def test_a_rejection_reaches_the_proposer_with_its_words(meup: Person, office: Office) -> None:
    proposal = office.propose("write", path="a")
    done = meup("reject", proposal, "--reason", "unsafe", "--explain", "not today", "--json")
    [said] = json.loads(done.out)["rejected"]
    assert (said["proposal"], said["proposer"], said["confirmed"]) == (proposal, "bot", True)
    # Its proposer may wait for others on; a second decision of ours is refused all the same.
    assert listed(meup) == {}
    for verb, said in (("reject",), "is rejected"), (("approve", "-y"), "does not wait for you"):
        again = meup(verb[0], proposal, *verb[1:])
        assert again.code != 0
        assert said in again.err
    office.withdraw(proposal)


def test_what_a_policy_has_denied_says_so(meup: Person, office: Office) -> None:
    proposal = office.propose("write", to=("alice", "reviewer"), path="etc/hosts")
    for _ in range(100):  # its rejection may come a moment later
        shown = meup("show", proposal).out
        if "is against it" in shown:
            break
    assert "! reviewer is against it: policy" in shown
    office.withdraw(proposal)


def test_what_is_edited_by_hand_is_judged_by_the_reviewer(
    meup: Person, office: Office, capfd: pytest.CaptureFixture[str]
) -> None:
    proposal = office.propose("write", to=("alice", "reviewer"), path="notes.md")
    before = len(office.calls)
    assert run(["fulfill", proposal, "--yes", "--edit", "path=etc/hosts"]) == exit_codes.REFUSED
    assert "not let pass by the rule 'never' of 'reviewer'" in capfd.readouterr().err
    assert len(office.calls) == before
    assert run(["fulfill", proposal, "--yes", "--executor", "reviewer"]) == exit_codes.REFUSED
    capfd.readouterr()
    assert run(["fulfill", proposal, "--yes", "--edit", "path=b.md"]) == exit_codes.OK
    assert office.calls[-1]["path"] == "b.md"


def test_a_vote_is_counted_and_may_be_changed(meup: Person, office: Office) -> None:
    proposal = office.propose("deploy", to="reviewer", version=7)
    found = listed(meup)[proposal]
    assert (found["may"], found["rule"]["name"]) == (["reject", "vote"], "four eyes")
    shown = meup("show", proposal).out
    assert "asked by four eyes (rule 1) of reviewer" in shown
    assert "votes 0 of 2  not yet: alice, lead" in shown
    done = meup("vote", proposal, "approve", "--explain", "go")
    assert (done.code, done.err) == (0, "meup: your vote is counted: 1 of 2 are for it\n")
    assert "✓ alice" in meup("show", proposal).out
    # Approving is a vote here: to carry it out would go past the others.
    assert json.loads(meup("approve", proposal, "-y", "--json").out)["proposals"] == [
        {"proposal": proposal, "proposer": "bot", "voted": "approve"}
    ]
    changed = meup("vote", proposal, "reject", "--json")
    assert json.loads(changed.out)["votes"] == {"alice": "reject"}
    office.withdraw(proposal)


def test_a_vote_where_none_is_counted_is_refused(meup: Person, office: Office) -> None:
    proposal = office.propose("write", path="a")
    done = meup("vote", proposal, "approve")
    assert done.code != 0
    assert "no votes are counted" in done.err
    office.withdraw(proposal)


def test_one_who_may_nothing_has_an_empty_inbox(meup: Person, office: Office) -> None:
    proposal = office.propose("write", path="a")
    meup.be("reader")
    done = meup("list")
    assert (done.code, done.out, done.err) == (0, "", "meup: nothing waits for you\n")
    for verb in (["show"], ["approve", "-y"]):
        refused = meup(verb[0], proposal, *verb[1:])
        assert refused.code != 0
        assert "does not wait for you" in refused.err
    refused = meup("reject", proposal, "--reason", "nonsense")
    assert (refused.code, refused.out) == (exit_codes.REFUSED, "")
    said = "meup: the gateway refused the rejection: capability_violation"
    assert (refused.err.startswith(said), refused.err.count("\n")) == (True, 1)
    assert office.calls == []
    office.withdraw(proposal)


def test_an_id_that_means_several_or_none_is_refused(meup: Person, office: Office) -> None:
    ids = [office.propose("write", path="a"), office.propose("write", path="b")]
    done = meup("approve", "", "--yes")
    assert (done.code, "the proposal is empty" in done.err) == (2, True)
    assert "knows no proposal" in meup("show", "no such").err
    office.withdraw(ids[0])
    assert "withdrawn" in meup("show", ids[0]).err
    assert office.calls == []
    office.withdraw(ids[1])


def test_a_decided_id_approves_no_other_that_begins_with_it(meup: Person, office: Office) -> None:
    decided = propose_by_http(office, "bot", "deploy-7", path="a")
    office.withdraw(decided)
    other = propose_by_http(office, "bot2", "deploy-7x", path="b")
    for verb in (("approve", "--yes"), ("reject", "--reason", "unsafe")):
        done = meup(verb[0], decided, *verb[1:])
        assert done.code != 0
        assert f"proposal {decided} is withdrawn" in done.err
    assert (office.calls, list(listed(meup))) == ([], [other])
    office.withdraw(other, "bot2")


def test_what_strangers_wrote_is_escaped(meup: Person, office: Office) -> None:
    proposal = office.propose("write", path=HOSTILE, text="wr\u0456te")
    for done in (meup("list"), meup("show", proposal), meup("approve", proposal)):
        said = done.out + done.err
        assert "\\u202egnp.exe" in said
        assert all(each.isprintable() for each in said.replace("\n", ""))
    assert "! its arguments have" in meup("show", proposal).out
    office.withdraw(proposal)


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_each_command_takes_the_screens_options(meup: Person, office: Office, before: bool) -> None:
    proposal = office.propose("write", path="a")
    token = office.gateway.token("alice")
    where = ["--url", office.gateway.url, "--space", "demo", "--token", token]
    where += ["--participant", "alice", "--no-color"]
    meup.forget("MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN")
    done = meup(*where, "list") if before else meup("list", *where)
    assert (done.code, proposal[:8] in done.out) == (0, True)
    office.withdraw(proposal)


def test_an_option_behind_a_command_comes_first(meup: Person, office: Office) -> None:
    token = office.gateway.token("alice")
    done = meup("--url", "ws://localhost:1", "--token", "wrong", "list", "--url")
    assert done.code == exit_codes.USAGE
    done = meup("--token", "wrong", "--url", "ws://localhost:1", "list", "--token", token)
    assert done.code == exit_codes.NO_CONNECTION
    done = meup("--token", "wrong", "list", "--token", token, "--url", office.gateway.url)
    assert (done.code, done.err) == (0, "meup: nothing waits for you\n")


def test_another_name_than_the_tokens_is_refused(meup: Person) -> None:
    done = meup("list", "--participant", "bob")
    said = "takes us for 'alice', not for 'bob'"
    assert (done.code, said in done.err) == (exit_codes.NO_CONNECTION, True)


def test_without_a_terminal_the_inbox_is_its_list(meup: Person, office: Office) -> None:
    proposal = office.propose("write", path="a")
    done = meup()
    assert (done.code, proposal[:8] in done.out, done.err) == (0, True, "")
    asked = meup("--json"), meup("--json", "list"), meup("list", "--json")
    ids = [[each["proposal"] for each in json.loads(done.out)["proposals"]] for done in asked]
    assert ids == [[proposal]] * 3
    office.withdraw(proposal)


def test_without_textual_the_inbox_is_its_list_and_says_how_to_get_it(
    meup: Person, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.cli.commands.inbox.find_spec", lambda _: None)
    proposal = office.propose("write", path="a")
    done = meup()
    assert (done.code, proposal[:8] in done.out) == (0, True)
    assert "pip install 'meup-agent[tui]'" in done.err
    office.withdraw(proposal)


@pytest.mark.parametrize(("answer", "runs"), [("y", True), ("", False), ("no", False)])
def test_at_a_terminal_approving_asks_once(
    meup: Person, office: Office, monkeypatch: pytest.MonkeyPatch, answer: str, runs: bool
) -> None:
    proposal = office.propose("write", path="a")
    keyboard, terminal = os.openpty()
    os.write(keyboard, f"{answer}\n".encode())
    with open(terminal, encoding="utf-8") as stdin, open(keyboard, "rb"):
        monkeypatch.setattr("sys.stdin", stdin)
        done = meup("approve", proposal)
    assert "approve it? [y/N] " in done.err
    assert bool(office.calls) is (done.code == 0) is runs
    if not runs:
        assert "not confirmed; nothing was sent" in done.err
        office.withdraw(proposal)


@pytest.mark.rule("4.6.proposer_left", "4.4.before_it_is_sent")
def test_what_a_proposer_has_left_is_not_approved(
    meup: Person, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose_by_http(office, "visitor", "left", path="a")
    monkeypatch.setattr(
        AbsenceTracker, "left_after", lambda _, who, accepted: accepted - 31_000_000
    )
    done = meup("approve", "left", "--yes")
    assert (done.code, office.calls) == (exit_codes.ABSENT, [])
    assert "'visitor', whose it is, has left the space" in done.err
    assert meup("reject", "left", "--reason", "disagree").code == exit_codes.OK


def test_the_history_tells_what_was_decided_and_what_was_missed(
    meup: Person, office: Office
) -> None:
    approved, missed = office.propose("write", path="a"), office.propose("deploy", seconds=-60)
    taken_back = office.propose("write", by="bot2", path="c")
    office.withdraw(taken_back, by="bot2")
    meup("approve", approved, "--yes")

    def history(*options: str) -> list[dict[str, Any]]:
        done = meup("history", "--limit", "9999", "--json", *options)
        assert done.code == 0, done.err
        found: list[dict[str, Any]] = json.loads(done.out)["decisions"]
        return found

    told = {each["id"]: each for each in history()}
    assert (told[approved]["state"], told[approved]["by"]) == ("fulfilled", "alice")
    assert (told[taken_back]["by"], told[taken_back]["reason"]) == ("bot2", "other")
    assert (told[missed]["state"], told[missed]["seen"]) == ("expired", False)
    assert [each["id"] for each in history("--search", approved)] == [approved]
    waited = [each["waited"] for each in history("--sort", "waited")]
    assert waited == sorted(waited, reverse=True)
    # A few of them are shown, which does not make all of them seen.
    assert "that you have not seen" in meup("history", "--limit", "1").err
    table = meup("history", "--state", "expired", "--limit", "9999").out.splitlines()
    heads, *rows = table
    assert heads.split()[:3] == ["when", "id", "tool"]
    assert [row for row in rows if missed[:8] in row and row.startswith("*") and "nobody" in row]
    assert not any(each["seen"] is False for each in history())
    done = meup("history", "--limit", "0")
    assert (done.code, done.err) == (
        exit_codes.USAGE,
        "meup: --limit takes a number from 1 to 100,000; 0 is not\n",
    )

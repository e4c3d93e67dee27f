"""`meup policy`: a good policy ends with 0, and everything else with a sentence."""

import asyncio
import json
import os
import pty
import select
from pathlib import Path

import pytest

from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.sqlite import SqliteJournal
from tests.bench.audit import BEGIN, SPACE, said
from tests.bench.suggest import write
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.processes import COMMAND, environment
from tests.forkserver import start
from tests.patience import PATIENCE
from tests.programs import ROOT

POLICY = str(ROOT / "examples" / "policy.yaml")
CASES = str(ROOT / "examples" / "policy_cases.yaml")
NOT_BOTH = "meup: give --journal or --http, not both\n"
TWO_BAD = ": 2 rules should be changed\n"


def written(folder: Path, text: str, name: str = "policy.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("rules", "code", "said"),
    [
        ("", exit_codes.OK, ": 5 rules, digest "),
        ("{deny: {tool: a}}", exit_codes.OK, ": 1 rule, digest "),
        ("{allow: {tool: '*'}}", exit_codes.FAILED, " is not good: 1 rule should be changed\n"),
        ("{allow: {tool: 'a*'}}, {allow: {tool: 'b*'}}", exit_codes.FAILED, TWO_BAD),
        ("{alow: {tool: a}}", exit_codes.USAGE, "did you mean allow?"),
        ("{ask: {tool: a}}, {deny: {tool: a}}", exit_codes.FAILED, "is not good"),
        ("{allow: {tool: 'read_*'}}, {deny: {tool: '*_key'}}", exit_codes.FAILED, "is not good"),
        ("{allow: {tool: 'read_*'}}, {ask: {tool: '*_key'}}", exit_codes.OK, ": warning: rules[0]"),
        ("{allow: {tool: 'read_a'}}, {deny: {tool: 'read_*'}}", exit_codes.OK, ": hint: rules[0]"),
        (
            "{allow: {tool: 'read_*'}}",
            exit_codes.OK,
            "takes 'read_a', 'read_.a', 'read_A-1'; not 'read_a/b', ",
        ),
    ],
)
def test_a_check_counts_rules_to_change(
    tmp_path: Path, rules: str, code: int, said: str, command: Here
) -> None:
    path = written(tmp_path, f"rules: [{rules}]\nend: true\n") if rules else POLICY
    done = command("policy", "check", path)
    assert done.code == code
    assert said in (done.err if code else done.out)
    assert done.err.count("\n") == (code != exit_codes.OK)


def test_explain_tells_which_rule_decides(command: Here) -> None:
    done = command("policy", "explain", POLICY, "shell_run", "--proposer", "bob")
    first, *_, last = done.out.splitlines()
    assert first == "rules[0] (deny): matches <- decides"
    assert last == "deny, policy: it matches rules[0]"


@pytest.mark.parametrize(("path", "rule"), [("docs/a.md", "rules[1]"), ("docs/../a.md", "default")])
def test_explain_takes_arguments_as_a_call_does(path: str, rule: str, command: Here) -> None:
    done = command("policy", "explain", POLICY, "read_file", f"path={path}", "--json")
    assert json.loads(done.out)["rule"] == rule


def test_explain_reads_an_envelope(tmp_path: Path, command: Here) -> None:
    params = {"name": "send_mail", "arguments": {"to": "a@example.com"}}
    envelope = {"from": "bot", "payload": {"method": "tools/call", "params": params}}
    path = written(tmp_path, json.dumps(envelope), "envelope.json")
    found = json.loads(command("policy", "explain", POLICY, "--envelope", path, "--json").out)
    assert (found["verdict"], found["rule"]) == ("allow", "own mail")
    assert found["matching"] == {"rules[2]": "narrow", "own mail": "narrow"}


@pytest.mark.parametrize("name", ["envelope.json", "not there.json", "proposal"])
def test_explain_takes_no_file_for_a_tool(
    tmp_path: Path, name: str, command: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "{}", "envelope.json")
    written(tmp_path, "{}", "proposal")
    done = command("policy", "explain", POLICY, name)
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    wanted = "'not there.json'" if " " in name else name
    said = f"meup: {name} names a file, not a tool; write --envelope {wanted}\n"
    assert done.err == said


def test_explain_takes_a_folder_and_a_long_name_for_tools(
    tmp_path: Path, command: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for name in ("src", "x" * 5_000):
        assert command("policy", "explain", POLICY, name).code == exit_codes.OK


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explain", POLICY), "give either a tool or --envelope"),
        (("explain", POLICY, "a", "--args", "[1]"), "--args are not a JSON object"),
        (("explain", POLICY, "--envelope", "none.json"), "cannot be read"),
        (("explain", POLICY, "--envelope", CASES), "expected a JSON object"),
        (("check", POLICY, "--journal", "a", "--http", "http://x"), NOT_BOTH),
        (("check", POLICY, "--journal", "nowhere.db"), "there is no journal"),
        (("suggest",), "the journal is missing"),
        (("suggest", "--journal", "x", "--http", "http://x"), "not both"),
        (("suggest", "--journal", "nowhere.db"), "there is no journal"),
    ],
)
def test_what_cannot_be_done_is_said(command: Here, words: tuple[str, ...], said: str) -> None:
    assert_fails(command("policy", *words), exit_codes.USAGE, said)


def test_cases_are_decided_as_expected(command: Here) -> None:
    done = command("policy", "test", CASES)
    assert (done.code, done.err) == (exit_codes.OK, "")
    assert "7 cases are decided as expected" in done.out


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (["ask"], "1 case is decided as expected by "),
        (["ask", "ask"], "2 cases are decided as expected by "),
        (["allow"], "1 of 1 case is decided otherwise by "),
        (["allow", "ask"], "1 of 2 cases is decided otherwise by "),
        (["allow", "allow"], "2 of 2 cases are decided otherwise by "),
    ],
)
def test_one_case_is_not_several(
    tmp_path: Path, expected: list[str], said: str, command: Here
) -> None:
    cases = [{"call": {"tool": "read_x"}, "expect": each} for each in expected]
    path = written(tmp_path, json.dumps({"cases": cases}), "c.yaml")
    done = command("policy", "test", path, "--policy", POLICY)
    assert said in done.out + done.err
    assert done.code == (exit_codes.FAILED if "allow" in expected else exit_codes.OK)
    found = "cases[0]: expected allow, got ask by default"
    assert (found in done.out) is (expected[0] == "allow")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cases: []", "cases: expected a list"),
        ("cases: [{call: {tool: a}, expect: alow}]", "expect: expected one of"),
        ("cases: [{call: {tool: a, argument: {}}, expect: ask}]", "did you mean arguments"),
        ("cases: [{call: {tool: 1}, expect: ask}]", "tool: expected a text"),
        ("cases: [{call: {tool: a}, expect: ask, earlier: -1}]", "earlier: expected a number"),
        ("cases: [{call: {tool: a}, expect: ask}]", "names no policy"),
    ],
)
def test_cases_that_cannot_be_meant(tmp_path: Path, text: str, said: str, command: Here) -> None:
    assert_fails(
        command("policy", "test", written(tmp_path, text, "c.yaml")), exit_codes.USAGE, said
    )


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    asyncio.run(write(path, 1_200))
    return str(path)


async def write_allowed(path: Path) -> None:
    """Write a journal with two calls that a rule allowed."""
    journal = SqliteJournal(JournalConfig(path), lambda: BEGIN)
    try:
        for id, more in (("p1", {}), ("p2", {"cc": "eve@example.org"})):
            told = {"verdict": "allow", "rule": "all mail", "policy": "0" * 16}
            meta = {"dev.meup/proposer": "bot", "dev.meup/rule": told}
            params = {"name": "send_mail", "arguments": {"to": "a@example.com", **more}}
            payload = {"method": "tools/call", "params": {**params, "_meta": meta}}
            request = said("mcp/request", payload, f"r{id}", "reviewer", "mail", id)
            journal.append(SPACE, BEGIN, request, (), lambda _: None)
        await journal.flush(60)
    finally:
        await journal.aclose()


def test_a_check_lists_the_calls_of_a_journal_that_are_allowed_no_longer(
    tmp_path: Path, command: Here
) -> None:
    asyncio.run(write_allowed(tmp_path / "journal.db"))
    done = command("policy", "check", POLICY, "--journal", str(tmp_path / "journal.db"))
    assert (done.code, done.err) == (exit_codes.OK, "")
    assert done.out.splitlines()[:2] == [
        "1 of 2 calls that a rule allowed is allowed no longer",
        "bot/p2: send_mail was allowed by all mail, and is now ask by default; own mail does not"
        " name cc",
    ]
    assert "5 rules, digest " in done.out


@pytest.mark.thorough
def test_what_is_suggested_is_a_good_policy(journal: str, tmp_path: Path, command: Here) -> None:
    done = command("policy", "suggest", "--journal", journal, "--least", "5")
    assert (done.code, done.err) == (exit_codes.OK, "")
    assert "- allow: {tool: tool_0, arguments: {path: " in done.out
    assert "would have changed 0; of such calls at least " in done.out
    assert "  # proposals: proposer-" in done.out
    assert done.out.endswith("\nend: true\n")
    checked = command("policy", "check", written(tmp_path, done.out))
    assert checked.code == exit_codes.OK, checked.out


def test_a_suggestion_as_json_has_every_proposal(journal: str, command: Here) -> None:
    done = command("policy", "suggest", "--journal", journal, "--least", "5", "--json")
    document = json.loads(done.out)
    found = document["rules"]
    assert document["end"] is True
    assert found
    for each in found:
        assert each["covers"] == len(each["proposals"]) >= 5
        assert each["changed"] == len(each["would_have_changed"])
        assert 0 < each["bound"] < 1


@pytest.mark.parametrize(
    ("size", "said"), [(30, "no 1000 of 30 decisions"), (1, "no 1000 of 1 decision")]
)
def test_nothing_is_suggested_of_too_little(
    tmp_path: Path, size: int, said: str, command: Here
) -> None:
    asyncio.run(write(tmp_path / "journal.db", size))
    journal = str(tmp_path / "journal.db")
    done = command("policy", "suggest", "--journal", journal, "--least", "1000")
    assert (done.code, done.out) == (exit_codes.OK, "")
    assert done.err == f"meup: nothing to suggest: {said} are alike\n"


def test_a_suggestion_shows_on_a_terminal_how_far_it_is(journal: str) -> None:
    ours, theirs = pty.openpty()
    process = start(
        [*COMMAND[1:], "policy", "suggest", "--journal", journal, "--least", "1000"],
        environment({"TERM": "xterm", "COLUMNS": "100"}),
        stderr=theirs,
    )
    os.close(theirs)
    shown = shown_on(ours)
    assert process.wait(PATIENCE) == exit_codes.OK
    assert process.stdout is not None
    with process.stdout as out:
        assert out.read() == b""
    bar, _, note = shown.partition("meup: nothing to suggest: ")
    assert "looking for rules" in bar
    assert "━" in bar
    assert "/1200" in bar
    assert "looking" not in note


def shown_on(terminal: int) -> str:
    """All that a program writes to a terminal, whose other end this is."""
    shown = b""
    try:
        while select.select([terminal], [], [], PATIENCE)[0]:
            shown += os.read(terminal, 65_536)
    except OSError:  # the program has ended, and nobody else has the terminal
        return shown.decode()
    finally:
        os.close(terminal)
    raise AssertionError(f"nothing came for {PATIENCE:g} s; shown: {shown!r}")

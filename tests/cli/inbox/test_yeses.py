"""`meup inbox yes`, `yeses` and `revoke-yes`: asked once, and for a while not again."""

import json
from typing import Any

import pytest

from tests.cli.commands import exit_codes, run
from tests.cli.inbox.conftest import Office, Person


def proposed(office: Office, **arguments: Any) -> str:
    """Propose to write, to whom it may concern: the reviewer, too."""
    return office.propose("write", to=(), **arguments)


def test_yes_carries_out_its_proposal_and_those_like_it(meup: Person, office: Office) -> None:
    first, like = proposed(office, path="d/a"), proposed(office, path="d/b")
    other = proposed(office, path="e/a")
    done = meup("yes", first[:8], "--for", "8h", "--at-most", "2", "--yes")
    assert (done.code, done.out) == (0, f"{first}: wrote d/a\n")
    assert "> 2  path in the same folder" in done.err
    assert '+ {"path": "d/b"}  (waiting)' in done.err
    assert '- {"path": "e/a"}  (waiting)' in done.err
    office.until_decided(like)
    [kept] = json.loads(meup("yeses", "--json").out)["yeses"]
    assert (kept["used"], kept["most"], kept["arguments"]) == (1, 2, {"path": "d/*"})
    third = proposed(office, path="d/c")
    office.until_decided(third)
    fourth = proposed(office, path="d/d")
    # Who gave it carries out the first; of the two that begin at once either may be faster.
    assert sorted(each["path"] for each in office.calls) == ["d/a", "d/b", "d/c"]
    waiting = json.loads(meup("list", "--json").out)["proposals"]
    assert {each["proposal"] for each in waiting} == {other, fourth}
    assert "used up, 2 of 2 used  files.write by bot  of alice" in meup("yeses").out
    office.withdraw(other)
    office.withdraw(fourth)
    assert meup("revoke-yes", "all").code == 0
    assert "no yes is kept" in meup("yeses").err


def test_written_pattern_is_used_listed_exported_and_revoked(meup: Person, office: Office) -> None:
    first = proposed(office, path="w/a", text="x")
    where = ("--where", '{"path": "w/**"}', "--free", "text")
    done = meup("yes", first, *where, "--yes", "--json")
    given = json.loads(done.out)
    assert given["proposal"] == first
    listing = meup("yeses").out
    assert "    path: w/**\n    text: any\n" in listing
    policy = meup("yeses", "--as-policy").out
    assert "{allow: {tool: write, arguments: {path: w/**}, target: files, proposer: bot" in policy
    assert policy.endswith("end: true\n")
    done = meup("revoke-yes", given["yes"][:10])
    assert (done.code, f"yes {given['yes']} is revoked" in done.err) == (0, True)
    assert meup("revoke-yes", given["yes"][:10]).code != 0


def test_audit_tells_who_said_it_which_calls_it_let_through_and_its_end(
    meup: Person, office: Office, capfd: pytest.CaptureFixture[str]
) -> None:
    first, like = proposed(office, path="z/a"), proposed(office, path="z/b")
    yes = json.loads(meup("yes", first, "--at-most", "2", "--yes", "--json").out)["yes"]
    office.until_decided(like)
    assert meup("revoke-yes", yes).code == 0
    assert run(["audit", "--proposal", like]) == 0
    assert f"by the rule yes {yes[:8]} of alice" in capfd.readouterr().out
    assert run(["audit", "--grants"]) == 0
    *_, given, revoked = capfd.readouterr().out.splitlines()
    assert f"  alice  said yes in advance to calls of bot  like proposal {first[:8]}" in given
    assert given.endswith(", 2 at most, for 1 h; path: z/*")
    assert revoked.endswith(f"  alice  revoked the yes {yes}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--for", "soon"), "--for: expected a number and its unit"),
        (("--for", "8d"), "at most 604800 seconds"),
        (("--at-most", "0"), "it lets 1 to 1000 calls through"),
        (("--scope", "99"), "--scope is one of 1 to"),
        (("--where", "no"), "--where: expected a JSON object"),
        (("--where", '{"path": "/(/"}'), "do not compile"),
        (("--where", json.dumps({"path": "x" * 10_000})), "at most 4096 are taken"),
        (("--where", '{"path": "other/*"}'), "does not take this call"),
        (("--free", "text"), "--free is for a pattern"),
        (("--scope", "1", "--where", "{}"), "either --scope or --where"),
    ],
)
def test_yes_that_cannot_be_meant_sends_nothing(
    meup: Person, office: Office, options: tuple[str, ...], said: str
) -> None:
    proposal = office.propose("write", path="n/a")
    done = meup("yes", proposal, *options, "--yes")
    assert done.code != 0
    assert said in done.err
    assert office.calls == []
    assert "no yes is kept" in meup("yeses").err
    office.withdraw(proposal)


def test_nothing_is_given_unasked_or_where_several_decide(meup: Person, office: Office) -> None:
    proposal = office.propose("write", path="n/a")
    done = meup("yes", proposal)
    assert done.code == exit_codes.USAGE
    assert "give --yes to do it" in done.err
    office.withdraw(proposal)
    proposal = office.propose("deploy", version=1)
    assert "not offered" in meup("yes", proposal, "--yes").err or office.calls == []
    office.withdraw(proposal)

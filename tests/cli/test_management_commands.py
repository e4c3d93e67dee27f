"""`meup grant`, `revoke`, `invite` and `kick`: they end well when the space has changed."""

import json

import pytest

from meup_agent import Space
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.processes import meup
from tests.cli.stage import Stage

CHAT = '{"kind": "chat", "payload": {}}'


async def _may_chat(space: Space) -> bool:
    return space.may("chat", {"message": "hi"})


def test_grant_and_revoke_by_its_id(here: Here, stage: Stage) -> None:
    done = here("grant", "nobody", "mcp/proposal", CHAT, "--reason", "trust")
    assert (done.code, done.err) == (0, "meup: nobody may do more now\n")
    grant = done.out.strip()
    assert stage.as_somebody("nobody", _may_chat)
    done = here("revoke", "nobody", "--grant", grant)
    assert (done.code, done.out, done.err) == (0, "", "meup: nobody may do less now\n")
    assert not stage.as_somebody("nobody", _may_chat)


def test_revoked_by_what_it_covers(here: Here, stage: Stage) -> None:
    done = here("grant", "nobody", "chat", "--json")
    assert json.loads(done.out)["capabilities"] == [{"kind": "chat"}]
    done = here("revoke", "nobody", "chat", "--json")
    assert json.loads(done.out) == {"participant": "nobody", "capabilities": [{"kind": "chat"}]}
    assert not stage.as_somebody("nobody", _may_chat)


def test_invited_guest_comes_with_what_was_written(stage: Stage) -> None:
    done = meup("invite", "guest", "chat", variables=stage.variables())
    assert (done.returncode, done.stderr) == (0, "meup: guest may join\n")
    token = done.stdout.strip()
    guest = stage.variables(MEUP_TOKEN=token)
    assert meup("chat", "hello", variables=guest).returncode == 0
    done = meup("kick", "guest", "--reason", "late", variables=stage.variables())
    said = "meup: guest is removed, and stays out until invited again\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)
    assert meup("chat", "hello", variables=guest).returncode == exit_codes.NO_CONNECTION


def test_removed_participant_comes_back_with_its_own_token(here: Here, stage: Stage) -> None:
    assert json.loads(here("kick", "nobody", "--json").out) == {"participant": "nobody"}
    done = here("invite", "nobody")
    assert (done.code, done.out) == (0, "")
    assert done.err == "meup: nobody may join again, with the token they have\n"
    assert not stage.as_somebody("nobody", _may_chat)


@pytest.mark.parametrize(
    "words",
    [
        ("grant", "nobody"),
        ("grant", "nobody", "{"),
        ("grant", "nobody", '{"kinds": "chat"}'),
        ("grant", "nobody", "/(/"),
        ("revoke", "nobody"),
        ("revoke", "nobody", "chat", "--grant", "g"),
    ],
)
def test_what_makes_no_sense_is_not_sent(words: tuple[str, ...], here: Here) -> None:
    assert_fails(here(*words), exit_codes.USAGE)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("grant", "somebody", "chat"), "unknown_participant"),
        (("grant", "nobody", "system/welcome"), "invalid_capability"),
        (("revoke", "nobody", "chat"), "nothing_to_revoke"),
        (("revoke", "nobody", "--grant", "made-up"), "unknown_grant"),
        (("invite", "paula"), "participant_exists"),
        (("kick", "somebody"), "unknown_participant"),
    ],
)
def test_refusal_is_shown(words: tuple[str, ...], code: str, here: Here) -> None:
    assert_fails(here(*words), exit_codes.REFUSED, code)
    assert_fails(here(*words, participant="paula"), exit_codes.REFUSED, "capability_violation")

"""`meup propose`: what becomes of a proposal shows in the exit code and a sentence."""

import json
import queue
import re
from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from meup_agent import Agent, Proposal
from meup_agent.gateway import ThreadedGateway
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here
from tests.cli.participants import variables_of
from tests.cli.processes import INTERRUPT, meup, running
from tests.cli.stage import ON_ONE_LINE, Stage
from tests.patience import PATIENCE

WRITE = ("propose", "files", "write_file", "text=t")


def test_a_fulfilled_one_has_a_result(stage: Stage) -> None:
    done = meup(*WRITE, "path=p", "--to", "reviewer", variables=stage.variables("paula"))
    proposed, fulfilled = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, "'p' has 't'\n")
    assert re.fullmatch(
        r'meup: proposed files\.write_file\(text="t", path="p"\) as [0-9a-f]{32};'
        r" waiting for reviewer to decide",
        proposed,
    )
    assert fulfilled == "meup: fulfilled by reviewer"


def test_who_may_call_proposes_all_the_same(stage: Stage, here: Here) -> None:
    done = here(*WRITE, "path=p", "--json")
    document = json.loads(done.out)
    assert done.code == 0
    assert (document["outcome"], document["result"]) == ("fulfilled", "'p' has 't'")
    assert (document["executor"], document["fulfilled_by"]) == ("files", "reviewer")
    assert document["proposal"] in done.err
    assert (document["changes"], document["as_proposed"]) == ([], True)


@pytest.mark.parametrize(
    ("path", "result", "said", "changes"),
    [
        (
            "edited",
            "elsewhere",
            'path is "elsewhere" instead of "edited"; --accept-edits',
            [{"path": "arguments.path", "proposed": "edited", "fulfilled": "elsewhere"}],
        ),
        ("told", "told", "no participant confirms that it was as proposed; --accept-edits", []),
    ],
)
def test_one_that_may_have_been_edited_is_told_of(
    here: Here, path: str, result: str, said: str, changes: list[object]
) -> None:
    strict = here(*WRITE, f"path={path}")
    assert (strict.code, strict.out) == (exit_codes.EDITED, f"'{result}' has 't'\n")
    assert said in strict.err
    lenient = here(*WRITE, f"path={path}", "--accept-edits", "--json")
    document = json.loads(lenient.out)
    assert (lenient.code, document["as_proposed"], document["changes"]) == (0, False, changes)


def test_a_rejected_one_says_who_and_why(stage: Stage, here: Here) -> None:
    done = here(*WRITE, "path=bad", "--to", "reviewer")
    assert (done.code, done.out) == (exit_codes.REJECTED, "")
    assert f"was rejected by 'reviewer': unsafe (never there {ON_ONE_LINE})" in done.err
    assert stage.calls == []


def test_programs_are_told_what_became_of_one_that_was_not_carried_out(here: Here) -> None:
    rejected = here(*WRITE, "path=bad", "--to", "reviewer", "--json")
    document = json.loads(rejected.out)
    assert rejected.code == exit_codes.REJECTED
    assert document.pop("proposal") in rejected.err
    assert document.pop("explanation").startswith("never there")
    assert document == {"outcome": "rejected", "by": "reviewer", "reason": "unsafe"}
    expired = here(*WRITE, "path=later", "--ttl", "1", "--wait", "deadline", "--json")
    document = json.loads(expired.out)
    assert expired.code == exit_codes.TIMED_OUT
    assert document.pop("proposal") in expired.err
    assert document == {"outcome": "expired", "by": None, "reason": None, "explanation": None}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("files", "fail"), exit_codes.TOOL_FAILED, "files.fail failed: ValueError: no such file"),
        (
            ("files", "nothing", "--to", "nobody", "--ttl", "0.1"),
            exit_codes.TIMED_OUT,
            "'nobody' is not in the space",
        ),
        (("files", "nothing", "--to", "revewer"), exit_codes.REFUSED, "did you mean 'reviewer'?"),
        (("fils", "nothing"), exit_codes.ABSENT, "'fils' is not in the space 'demo'; here: "),
    ],
)
def test_what_becomes_of_it_has_a_code(
    here: Here, words: tuple[str, ...], code: int, said: str
) -> None:
    done = here("propose", *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_an_undecided_one_expires(here: Here) -> None:
    done = here(*WRITE, "path=later", "--wait", "deadline", MEUP_TTL="1")
    assert (done.code, done.out) == (exit_codes.TIMED_OUT, "")
    assert "expired: no participant decided it in time" in done.err


def test_one_that_takes_too_long_is_not_called_undecided(stage: Stage, here: Here) -> None:
    done = here("propose", "files", "read_long", "--ttl", "2")
    assert (done.code, done.out) == (exit_codes.TIMED_OUT, "")
    assert "expired: 'reviewer' had begun to fulfill it, and it was not done in time" in done.err
    assert "nobody" not in done.err
    stage.wait_for_all("started", "stopped", "expired")


@pytest.fixture
def with_owner(gateway: ThreadedGateway) -> Iterator[BlockingPortal]:
    """The tailer is in the space, and has the tool work; nobody may call it."""
    owner = Agent("owner")

    @owner.tool
    async def work() -> None: ...

    with start_blocking_portal() as portal:
        joined = owner.join(gateway.url, space="demo", token=gateway.token("tailer"), grace=0.0)
        with portal.wrap_async_context_manager(joined):
            yield portal


@pytest.mark.usefixtures("with_owner")
def test_nobody_to_fulfill_is_told(gateway: ThreadedGateway) -> None:
    settings = variables_of(gateway, "alice")
    done = meup("propose", "tailer", "work", "--ttl", "0.1", variables=settings)
    assert done.returncode == exit_codes.TIMED_OUT
    assert "; waiting for a decision\n" in done.stderr
    assert "nobody here may call " in done.stderr
    assert " could, if granted {" in done.stderr
    assert "; it waits for one that may call it to join\n" in done.stderr


def test_who_may_decide_is_told_when_it_joins(
    gateway: ThreadedGateway, with_owner: BlockingPortal
) -> None:
    with running("propose", "tailer", "work", variables=variables_of(gateway, "alice")) as propose:
        propose.until("it waits for one that may call it to join", stream="err")
        bob = Agent("bob").join(gateway.url, space="demo", token=gateway.token("bob"), grace=0.0)
        with with_owner.wrap_async_context_manager(bob):
            propose.until("meup: bob may decide now\n", stream="err")
            assert propose.end(INTERRUPT) == exit_codes.INTERRUPTED


def test_ctrl_c_withdraws_it(stage: Stage) -> None:
    with running("propose", "files", "nothing", variables=stage.variables("paula")) as propose:
        proposal = stage.wait_for("proposed")
        assert propose.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert stage.wait_for("withdrawn") == proposal
    assert propose.out == ""
    assert propose.err.endswith(f"meup: interrupted; proposal {proposal} was withdrawn\n")


def test_no_connection_tells_none(gateway: ThreadedGateway) -> None:
    bob, hears = Agent("bob"), queue.Queue[str]()

    @bob.tool
    async def work() -> None: ...

    @bob.on_proposal
    async def take(proposal: Proposal) -> None:
        hears.put(proposal.id)

    settings = variables_of(gateway, "alice")
    with start_blocking_portal() as portal:
        joined = bob.join(gateway.url, space="demo", token=gateway.token("bob"), grace=0.0)
        with portal.wrap_async_context_manager(joined):
            with running("propose", "bob", "work", "--json", variables=settings) as propose:
                hears.get(timeout=PATIENCE)
                gateway.kill()
                propose.until("connection lost, dropped without a close frame", stream="err")
                assert propose.end(INTERRUPT) == exit_codes.INTERRUPTED
    assert propose.out == ""
    assert propose.err.endswith(
        "meup: interrupted without a connection, so no participant was told: it may still happen\n"
    )

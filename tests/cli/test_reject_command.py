"""`meup reject`: it reaches the proposer, and says no more than is known."""

import json
import signal
import threading

import pytest

from meup_agent import Rejection, Space
from meup_agent.cli.commands.decisions import choose_pending
from meup_agent.errors import AlreadyDecided
from meup_agent.types import ProposalRecord
from tests.cli.commands import Failure, exit_codes
from tests.cli.conftest import Here
from tests.cli.processes import meup, running
from tests.cli.servers import websockets_to, welcome
from tests.cli.stage import HOSTILE, Stage
from tests.tables import ProposalEntry, ProposalKey

UNSEEN = "0123456789abcdef0123456789abcdef"


def test_it_ends_the_wait_of_the_proposer(stage: Stage) -> None:
    found: list[object] = []
    explained: list[str] = []

    async def propose(space: Space) -> None:
        with space.watch() as envelopes:
            async with space.propose("files", "nothing", to="alice", ttl=600) as proposal:
                stage.tell("proposed", proposal.id)
                found.append(await proposal.outcome())
            async for envelope in envelopes:
                if envelope.kind == "chat":
                    explained.append(envelope.payload_object["message"])
                    return

    proposer = threading.Thread(target=stage.as_somebody, args=("paula", propose))
    proposer.start()
    proposal = stage.wait_for("proposed")
    done = meup(
        "reject", proposal, "--reason", "policy", "--explain", HOSTILE, variables=stage.variables()
    )
    proposer.join()
    [outcome] = found
    assert isinstance(outcome, Rejection)
    assert (outcome.proposal_id, outcome.reason, outcome.by) == (proposal, "policy", "alice")
    assert explained == [HOSTILE]
    sent = f"meup: proposal {proposal} of paula is rejected: policy\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", sent)


def test_anybody_ends_a_wait_for_the_first(stage: Stage, here: Here) -> None:
    words = ("propose", "files", "nothing", "--wait", "first")
    with running(*words, variables=stage.variables("paula")) as propose:
        proposal = stage.wait_for("proposed")
        assert here("reject", proposal, "--reason", "busy", "--explain", "tomorrow").code == 0
        assert propose.end() == exit_codes.REJECTED
    assert f"proposal {proposal} was rejected by 'alice': busy" in propose.err
    assert stage.wait_for("withdrawn") == proposal


def test_rejection_that_leaves_others_to_decide_is_told(stage: Stage, here: Here) -> None:
    words = ("propose", "files", "nothing", "--wait", "all", "--to", "reviewer", "--to", "alice")
    with running(*words, variables=stage.variables("paula")) as propose:
        proposal = stage.wait_for("proposed")
        for reason in ("busy", "unsafe"):
            assert (
                here("reject", proposal, "--reason", reason, "--explain", f"{reason}\x1b").code == 0
            )
        propose.until("rejected by alice: busy; others may still decide", stream="err")
        propose.until("alice explains: busy\\e", stream="err")
        propose.end(signal.SIGINT)
    assert propose.err.count(" explains: ") == 1
    assert propose.err.count("others may still decide") == 1


def test_what_looks_wrong_is_remarked_and_sent(command: Here) -> None:
    words = ("--reason", "unsaef", "--proposer", "paul", "--json")
    with websockets_to(welcome()) as url:
        settings = {"MEUP_URL": url, "MEUP_SPACE": "demo", "MEUP_TOKEN": "a"}
        done = command("reject", "0123abcd", *words, **settings)
    shortened, absent, sent, reason = done.err.splitlines()
    assert done.code == 0
    assert "'unsaef' is not a reason of the protocol (did you mean unsafe?)" in reason
    assert "'0123abcd' looks shortened" in shortened
    assert "'paul' is not in the space" in absent
    assert sent == "meup: rejection of 0123abcd of paul sent; the gateway confirms none"
    [said] = json.loads(done.out)["rejected"]
    assert (said["proposal"], said["proposer"], said["confirmed"]) == ("0123abcd", "paul", False)


def test_nothing_is_rejected_where_one_is_unknown_or_empty(here: Here) -> None:
    assert "knows no proposal" in here("reject", UNSEEN, "--json").err
    assert here("reject", "").code == exit_codes.USAGE
    assert here("reject", UNSEEN, "--reason", " ").code == exit_codes.USAGE
    assert here("reject", UNSEEN, "--reason").err.endswith("see meup reject --help\n")


def test_an_id_that_means_several_is_refused(stage: Stage) -> None:
    async def propose(space: Space) -> list[ProposalRecord]:
        async with space.propose("files", "nothing"), space.propose("files", "fail"):
            seen = list(space.proposals)
            # Others count: the whole of one id may be the beginning of another.
            first, tenth = [
                ProposalRecord(ProposalEntry(ProposalKey("them", name), each.envelope, 0))
                for name, each in zip(("them-1", "them-10"), seen, strict=True)
            ]
            assert choose_pending([tenth, first], "them-1") is first
            with pytest.raises(Failure, match="several proposals are meant by 'them': them-10 of"):
                choose_pending([tenth, first], "them")
            # Two proposers may have used one id.
            copied = ProposalRecord(
                ProposalEntry(ProposalKey("eve", "them-1"), seen[0].envelope, 0)
            )
            with pytest.raises(Failure, match=r"them-1 of them, .*; them-1 of eve, .*--proposer"):
                choose_pending([first, copied], "them-1")
            return seen

    # Their blocks were left.
    withdrawn, _ = stage.as_somebody("paula", propose)
    with pytest.raises(AlreadyDecided, match="is withdrawn"):
        choose_pending([withdrawn], withdrawn.id[:8])

"""The count of votes: for every order of votes, and nothing but votes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.approval.policy.rules import Vote, VoteCount, VoteOutcome
from meup_agent.errors import VoteRefused

NAMES = ("lead", "security", "oncall", "bob")
AMONG = ("lead", "security", "oncall")


def count(of: int = 2, proposer: str = "bob", among: tuple[str, ...] = AMONG) -> VoteCount:
    return VoteCount(proposer, of, among)


def test_votes_are_counted() -> None:
    one = count().cast("lead", Vote.APPROVE)
    assert (one.outcome, one.missing) == (VoteOutcome.OPEN, ("security", "oncall"))
    assert str(one) == "1 of 2 approvals (lead)"
    assert one.cast("oncall", Vote.APPROVE).outcome is VoteOutcome.APPROVED
    lost = count(of=3).cast("lead", Vote.REJECT)
    assert lost.outcome is VoteOutcome.REJECTED
    assert str(lost) == "0 of 3 approvals; lead rejected"


def test_a_vote_may_be_changed_until_the_votes_decide() -> None:
    changed = count().cast("lead", Vote.APPROVE, "fine").cast("lead", Vote.REJECT)
    assert changed.explanations == {}
    assert changed.cast("oncall", Vote.APPROVE).outcome is VoteOutcome.OPEN
    decided = changed.cast("oncall", Vote.REJECT)
    assert decided.outcome is VoteOutcome.REJECTED
    with pytest.raises(VoteRefused, match="decided: it is rejected"):
        decided.cast("lead", Vote.APPROVE)


@pytest.mark.parametrize(
    "voter",
    ["bob", "mallory", "Lead", "leаd", "lead "],
    ids=["proposer", "stranger", "case", "look-alike", "space"],
)
def test_a_vote_of_others_is_refused(voter: str) -> None:
    said = "never counts" if voter == "bob" else "may not vote"
    with pytest.raises(VoteRefused, match=said):
        count(among=(*AMONG, "bob")).cast(voter, Vote.APPROVE)


def test_a_proposer_among_the_voters_leaves_fewer() -> None:
    assert count(of=2, proposer="lead").outcome is VoteOutcome.OPEN
    assert count(of=3, proposer="lead").outcome is VoteOutcome.REJECTED
    assert count(of=2, proposer="lead").cast("oncall", Vote.REJECT).outcome is VoteOutcome.REJECTED


def test_a_vote_that_was_put_into_a_count_by_hand_counts_only_from_a_voter() -> None:
    forged = VoteCount("bob", 2, AMONG, dict.fromkeys(("bob", "mallory", "x"), Vote.APPROVE))
    assert forged.outcome is VoteOutcome.OPEN
    assert VoteCount("bob", 0, AMONG).outcome is VoteOutcome.REJECTED


@given(
    of=st.integers(1, 4),
    among=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    votes=st.lists(st.tuples(st.sampled_from((*NAMES, "mallory")), st.sampled_from(Vote))),
)
def test_only_a_quorum_approves(of: int, among: list[str], votes: list[tuple[str, Vote]]) -> None:
    """Against a count by hand: the last vote of each who may, up to the one that decides."""
    made = VoteCount("bob", of, tuple(among))
    last: dict[str, Vote] = {}
    voters = set(among) - {"bob"}
    assert (made.outcome is VoteOutcome.REJECTED) == (len(voters) < of)
    for voter, vote in votes:
        before = made
        try:
            made = made.cast(voter, vote)
        except VoteRefused:
            assert voter not in voters or before.outcome is not VoteOutcome.OPEN
            assert made is before
            continue
        last[voter] = vote
        tally = Counter(last.values())
        assert set(last) <= voters
        assert (made.outcome is VoteOutcome.APPROVED) == (tally[Vote.APPROVE] >= of)
        assert (made.outcome is VoteOutcome.REJECTED) == (len(voters) - tally[Vote.REJECT] < of)

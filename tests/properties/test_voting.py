"""Votes under reordering and crashes: nothing runs without its quorum, and nothing twice."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from meup_agent.approval.policy.rule_set import Vote
from tests.effort import scaled
from tests.properties.interruptions import Interruptions
from tests.properties.voting import EXECUTORS, PROPOSERS, REVIEWERS, VOTERS, VotingWorld

INDEX = st.integers(0, 1)
TTL = st.sampled_from([None, 45.0, 300.0])


class Voting(Interruptions):
    """Everything that can happen to proposals that votes decide."""

    world: VotingWorld

    def __init__(self) -> None:
        super().__init__()
        self.world = VotingWorld()

    @initialize(proposer=st.sampled_from(PROPOSERS), executor=st.sampled_from(EXECUTORS))
    def first(self, proposer: str, executor: str) -> None:
        self.world.propose(None, foreign=False, proposer=proposer, executor=executor)
        self.go_round()

    @rule(ttl=TTL, proposer=st.sampled_from(PROPOSERS), executor=st.sampled_from(EXECUTORS))
    def propose(self, ttl: float | None, proposer: str, executor: str) -> None:
        self.world.propose(ttl, foreign=False, proposer=proposer, executor=executor)

    @rule(
        voter=st.sampled_from(VOTERS),
        reviewer=st.sampled_from(REVIEWERS),
        index=INDEX,
        vote=st.sampled_from([Vote.APPROVE, Vote.APPROVE, Vote.REJECT]),
        at_once=st.booleans(),
    )
    def vote(self, voter: str, reviewer: str, index: int, vote: Vote, at_once: bool) -> None:
        self.world.vote(voter, reviewer, index, vote)
        if at_once:  # few quorums come about with each frame apart
            self.go_round()

    @rule(index=INDEX, proposer=st.sampled_from(PROPOSERS))
    def withdraw(self, index: int, proposer: str) -> None:
        self.world.withdraw(index, proposer=proposer)

    @invariant()
    def holds(self) -> None:
        self.world.check()


@pytest.mark.rule("5.votes.count", "5.votes.voter", "5.votes.once", "4.4.before_it_is_sent")
def test_nothing_runs_without_its_quorum() -> None:
    case = Voting.TestCase
    case.settings = settings(max_examples=scaled(60), stateful_step_count=40, deadline=None)
    case().runTest()


def voted(proposer: str, *votes: tuple[str, str]) -> VotingWorld:
    """A proposal, and approvals of it, each of a voter at a reviewer."""
    machine = Voting()
    world = machine.world
    world.propose(None, foreign=False, proposer=proposer, executor="f")
    machine.go_round()
    for voter, reviewer in votes:
        world.vote(voter, reviewer, 0, Vote.APPROVE)
        machine.go_round()
        world.check()
    return world


def test_a_quorum_carries_out_what_it_is_for() -> None:
    """Two reviewers come to the same, and the call runs once."""
    votes = (("v1", "r1"), ("p", "r2"), ("v2", "r1"), ("v2", "r2"), ("v1", "r2"))
    assert len(voted("q", *votes).ran) == 1


@pytest.mark.parametrize(
    "votes",
    [
        (("p", "r1"), ("v1", "r1")),
        (("v1", "r1"), ("v1", "r1")),
        (("v1", "r1"), ("v2", "r2")),
        (("e", "r1"), ("v1", "r1")),
    ],
    ids=["the proposer's", "the same voter's", "at two reviewers", "of who may not"],
)
def test_votes_that_are_no_quorum_carry_nothing_out(votes: tuple[tuple[str, str], ...]) -> None:
    assert voted("p", *votes).ran == []

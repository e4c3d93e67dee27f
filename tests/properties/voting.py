"""A space in which votes decide: proposers, reviewers that count, voters and executors."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from meup_agent import Envelope
from meup_agent.approval.policy.rule_set import Vote, VoteCount, VoteOutcome
from meup_agent.errors import VoteRefused
from tests.properties.silence import Process, SilentWorld
from tests.tables import Effect, Key, ProposalKey, Role, Start
from tests.wire import draft, kinds, payloads

PROPOSERS: Final = ("p", "q")
REVIEWERS: Final = ("r1", "r2")
VOTERS: Final = ("v1", "v2", "p")
"""Those that the rule names: a proposer, too, whose vote about its own proposal does not count."""

EXECUTORS: Final = ("e", "f")
CLOCKS: Final = dict.fromkeys((*PROPOSERS, *REVIEWERS, "v1", "v2", *EXECUTORS), 0.0)
OF: Final = 2


class VotingProcess(Process):
    """A process whose requests are votes where it counts them, and work where it executes."""

    def __init__(self, world: VotingWorld, name: str) -> None:
        super().__init__(world, name)
        self.voting = world
        self.counts: dict[ProposalKey, VoteCount] = {}
        self.ran: set[ProposalKey] = set()

    def apply(self, effects: list[Effect]) -> None:
        super().apply(effects)
        for effect in effects:
            match effect:
                case Start(key=key, work=work) if work.role is Role.REQUEST:
                    if self.name in REVIEWERS:
                        self.count(key, work.envelope)
                case _:
                    pass

    def count(self, key: Key, vote: Envelope) -> None:
        """Count a vote, as a reviewer does, and carry out what the votes decide."""
        said = payloads.read_call(vote.payload).params
        about = ProposalKey(said["proposer"], said["proposal"])
        record = self.table.proposal_store.get(about, self.voting.now)
        if record is not None and record.state.is_pending:
            count = self.counts.get(about) or VoteCount(about.proposer, OF, VOTERS)
            with suppress(VoteRefused):
                count = count.cast(vote.sender, Vote(said["vote"]))
            self.counts[about] = count
            if count.outcome is VoteOutcome.APPROVED:
                self.voting.fulfill(self.name, record, even_if_gone=False)
            elif count.outcome is VoteOutcome.REJECTED:
                self.apply(self.table.reject(about, "disagree", self.voting.now)[1])
            if count.outcome is not VoteOutcome.OPEN:
                self.counts[about] = count.anew()  # they are spent, whatever becomes of it
        self.apply(self.table.returned(key, {"content": []}, self.voting.now))


class VotingWorld(SilentWorld):
    """Two proposers, two reviewers, voters and two executors around a gateway."""

    clocks = CLOCKS
    executors = EXECUTORS

    def process(self, name: str) -> Process:
        return VotingProcess(self, name)

    def vote(self, voter: str, reviewer: str, index: int, vote: Vote) -> None:
        """Vote about a proposal that the voter knows, its own included."""
        known, process = self.known(voter), self.processes[voter]
        if not known or not process.table.roster.me:
            return
        about = known[index % len(known)].key
        params = {"proposal": about.id, "proposer": about.proposer, "vote": str(vote)}
        request_id = process.table.new_id()
        body = payloads.request("dev.meup/vote", params, request_id)
        request = draft(kinds.MCP_REQUEST, body, id=request_id, sender=voter, to=(reviewer,))
        _, effects = process.table.open(request, now=self.now, deadline=None)
        process.apply(effects)

    def runs(self, executor: str, request: Envelope) -> None:
        if executor in REVIEWERS:
            return
        super().runs(executor, request)
        process = self.processes[executor]
        assert isinstance(process, VotingProcess)
        call = payloads.read_call(request.payload)
        about = ProposalKey(str(call.meta[payloads.PROPOSER]), request.correlation[0])
        assert about not in process.ran, "what was approved once ran twice"
        process.ran.add(about)

    def check(self) -> None:
        """Each fulfillment has a quorum of votes before it, none of them its proposer's."""
        super().check()
        approvals: dict[tuple[str, str, str], set[str]] = {}
        ring = self.journal.recover("demo", since=0, limit=1_000_000).entries
        for entry in ring:
            envelope = entry.envelope
            if envelope.kind != kinds.MCP_REQUEST:
                continue
            call = payloads.read_call(envelope.payload)
            if call.is_notification:
                continue
            if call.method == "dev.meup/vote":
                self._note(envelope, call.params, approvals)
                continue
            proposer = str(call.meta[payloads.PROPOSER])
            found = approvals.get((envelope.sender, proposer, envelope.correlation[0]), set())
            assert len(found - {proposer}) >= OF, "carried out without the votes that it takes"

    @staticmethod
    def _note(
        vote: Envelope, said: dict[str, Any], approvals: dict[tuple[str, str, str], set[str]]
    ) -> None:
        if said["vote"] == Vote.APPROVE and vote.sender in VOTERS:
            key = (vote.to[0], said["proposer"], said["proposal"])
            approvals.setdefault(key, set()).add(vote.sender)

"""Voter watch: takes back the votes of those who are removed from the space, or may vote no more.

Their approval would otherwise count for what others decide later. What an absent participant
may send is not announced, so any revocation from it takes its votes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meup_agent.approval.reviewer_methods import VOTE, VoteParams
from meup_agent.approval.voting import Vote
from meup_agent.client.method_params import write_params
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.protocol import kinds
from meup_agent.protocol.exchange.roster import UPDATE, read_participant
from meup_agent.protocol.management_payloads import KICK, REVOKE

if TYPE_CHECKING:
    from meup_agent.approval.held_proposals import HeldProposal, HeldProposals
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope


class VoterWatch:
    """Follows a space, and takes votes back.

    Args:
        space: The space.
        held: The proposals whose votes are counted.
        take_back: Takes back the vote of a participant about one.
    """

    def __init__(
        self, space: Space, held: HeldProposals, take_back: Callable[[HeldProposal, str], None]
    ) -> None:
        self._feed = ProposalFeed(space)
        self._space = space
        self._held = held
        self._take_back = take_back

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope takes from those who have voted."""
        payload = envelope.payload_object
        if envelope.kind == KICK:
            removed = payload.get("participant_id")
            self._take_back_if(lambda voter, held: voter == removed)
        elif envelope.kind == REVOKE:
            here = {each.id for each in self._space.participants}
            # Of those who are here an update tells what is left to them.
            self._take_back_if(
                lambda voter, held: voter not in here and payload.get("recipient") in (None, voter)
            )
        elif envelope.kind == kinds.SYSTEM_PRESENCE and payload.get("event") == UPDATE:
            changed = read_participant(payload.get("participant"))
            if changed is not None:
                self._take_back_if(
                    lambda voter, held: voter == changed.id and not self._may_vote(voter, held)
                )

    def _take_back_if(self, is_over: Callable[[str, HeldProposal], bool]) -> None:
        for held in self._held:
            for voter in () if held.count is None else held.count.votes:
                if is_over(voter, held):
                    self._take_back(held, voter)

    def _may_vote(self, voter: str, held: HeldProposal) -> bool:
        proposal = held.proposal
        params = VoteParams(proposal=proposal.id, proposer=proposal.proposer, vote=Vote.APPROVE)
        return self._feed.may_request_of_us(voter, VOTE, write_params(params))

"""Offers of an inbox: the decisions that a participant may make of a proposal, and its dangers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meup_agent.approval.inbox.item import Verb
from meup_agent.approval.policy.rule_set import Vote
from meup_agent.approval.reviewer.methods import VOTE, VoteParams
from meup_agent.causes import OF_THE_MOMENT, Reason
from meup_agent.client.messages import write_params
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.payloads import TOOL_CALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meup_agent.approval.inbox.item import InboxItem
    from meup_agent.approval.reviewer.told_rules import InboxRule
    from meup_agent.approval.reviewer.tool_directory import ToolDirectory, ToolFacts
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.payloads import Call


class InboxOffers:
    """The decisions that are offered, by our capabilities and by who is here.

    Args:
        space: The space.
        feed: Its proposals.
        directory: The tools of its participants.
    """

    def __init__(self, space: Space, feed: ProposalFeed, directory: ToolDirectory) -> None:
        self._space = space
        self._feed = feed
        self._directory = directory

    def is_here(self, participant: str | None) -> bool:
        # What runs beside this inbox under our name is here as well.
        return participant == self._space.me or self._feed.is_present(participant)

    def allowed(self, call: Call) -> frozenset[Verb]:
        """The decisions that our capabilities allow, with any members present."""
        found = set[Verb]()
        if self._space.may(kinds.MCP_REJECT, {"reason": str(Reason.DISAGREE)}):
            found.add(Verb.REJECT)
        if self._space.may_request(None, call.method, call.params):
            found.add(Verb.APPROVE)
        return frozenset(found)

    def offered(self, item: InboxItem, allowed: frozenset[Verb]) -> frozenset[Verb]:
        """The decisions that are offered now.

        Where a reviewer counts our vote, that is what approving means: to carry it out ourselves
        would go past the other voters.
        """
        if item.rule is not None and self._may_vote(item, item.rule):
            return (allowed - {Verb.APPROVE}) | {Verb.VOTE}
        # What is sent to who is not here would wait, and perhaps run long after.
        has_executor = self.is_here(item.target) or self.names_none(item)
        return allowed if has_executor else allowed - {Verb.APPROVE}

    @staticmethod
    def names_none(item: InboxItem) -> bool:
        """True for the call of a tool that goes to the only participant that has it."""
        return item.target is None and item.method == TOOL_CALL

    def _may_vote(self, item: InboxItem, rule: InboxRule) -> bool:
        me = self._space.me
        if not rule.counts_vote_of(me) or item.proposer == me or not self.is_here(rule.reviewer):
            return False
        vote = VoteParams(proposal=item.id, proposer=item.proposer, vote=Vote.APPROVE)
        return self._space.may_request(rule.reviewer, VOTE, write_params(vote))

    def why_not(self, item: InboxItem, verb: Verb) -> str:
        """The reason for which a decision is not offered."""
        if verb is Verb.APPROVE and item.target is None and not self.names_none(item):
            return f"proposal {item.id} does not say who should carry it out"
        if verb is Verb.APPROVE and item.target and not self.is_here(item.target):
            return f"proposal {item.id} is for {item.target!r}, who is not here"
        if verb is Verb.VOTE and (item.rule is None or not item.rule.is_quorum):
            return f"no votes are counted about proposal {item.id}"
        if verb is Verb.VOTE:
            return f"a vote of {self._space.me!r} about proposal {item.id} does not count"
        return f"our capabilities do not allow to {verb} proposal {item.id}"

    def facts(self, item: InboxItem) -> ToolFacts | None:
        """The tool as the participant that has it describes it."""
        tools = self._tools(item)
        return None if tools is None else tools.get(item.tool)

    def _tools(self, item: InboxItem) -> Mapping[str, ToolFacts] | None:
        return None if item.target is None else self._directory.tools(item.target)

    def ask_for_tools_again(self, item: InboxItem) -> None:
        """Ask anew for the tools of an executor, where a call or a vote was refused."""
        if item.target is not None and self.is_here(item.target):
            self._directory.ask_again(item.target, refresh=True)

    def dangers(self, item: InboxItem) -> Iterator[str]:
        """Reasons to look twice before approving."""
        target, facts = item.target or "", self.facts(item)
        if item.rule is not None and item.rule.is_quorum and Verb.APPROVE in item.may:
            voters = ", ".join(item.rule.among)
            yield f"goes past the votes of {voters}, which the rule {item.rule.name} asks for"
        for said in item.rejections:
            if said.reason not in OF_THE_MOMENT:
                yield f"{said.by} is against it: {said.reason}"
        for each in item.cancelled_by:
            yield f"it may have run in part: {each} approved it before, and that was cancelled"
        if item.method != TOOL_CALL or item.asks_permit:
            pass  # no listed tool, so no annotations
        elif facts is not None and facts.is_destructive:
            yield f"{target} marks it as destructive"
        elif self._tools(item) is not None and facts is None:
            yield f"{target} has no such tool"
        elif facts is None and item.target is not None:
            yet = "" if self._directory.could_not_be_had(target) else " yet"
            yield f"the tools of {target} are not known{yet}"
        if facts is not None and facts.mark is not None and facts.form:
            for each in facts.mark.difference or ("it does not say how",):
                yield f"{target} does not offer this tool as it was accepted: {each}"
        yield from item.marks

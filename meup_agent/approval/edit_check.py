"""Check of a person's edit: the rules of every reviewer that is here judge the call as it now is.

A rule that an inbox was told is no condition: a proposer that floods its space, or is fast, may
keep a reviewer's rule from being known, and an edit is not to run unjudged for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meup_agent.approval.reviewer_methods import JUDGE, JudgeParams
from meup_agent.approval.tool_directory import MAX_AT_A_TIME
from meup_agent.client.ask_each import ask_each
from meup_agent.client.method_params import write_params
from meup_agent.errors import (
    ConnectionFailed,
    MeupError,
    NotOffered,
    Refused,
    RequestError,
    printable,
)
from meup_agent.protocol import payloads
from meup_agent.protocol.dialects.executors import read_addressees
from meup_agent.protocol.payloads import as_object

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from meup_agent.approval.reviewer_rules import InboxRule
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.payloads import Call

JUDGE_SECONDS: Final = 10.0
"""Wait for a verdict about an edited call, for which a reviewer may read a list of tools."""

MAX_WORDS: Final = 500
"""Characters of a reviewer's words about an edited call that are told."""

MAX_NAME: Final = 100
"""Characters of a rule's name that are told."""


class EditCheck:
    """The check of edited calls by reviewers.

    A reviewer is a participant that answers the method ``dev.meup/judge``. What it says can only
    hold a call back, so each participant is asked that may carry the proposed call out, or reject
    it.

    Args:
        space: The space.
        feed: Its proposals.
    """

    def __init__(self, space: Space, feed: ProposalFeed) -> None:
        self._space = space
        self._feed = feed

    async def check(
        self,
        proposal: Envelope,
        arguments: dict[str, Any],
        *,
        target: str | None = None,
        told: Collection[InboxRule] = (),
        away: Sequence[str] = (),
    ) -> None:
        """Have an edited call judged.

        Args:
            proposal: The proposal.
            arguments: The arguments that are to be sent.
            target: The participant that is to carry it out, where it is another than proposed.
            told: The rules that reviewers have told for it.
            away: The reviewers whose rule asked for a decision, and who are not here.

        Raises:
            Refused: A rule does not let it pass.
            NotOffered: A reviewer that asked for a decision is away, or we may not ask one who may
                decide, or it gives no verdict; then nothing is certain, and nothing is sent.
            ConnectionFailed: Our own connection has failed.
        """
        if away:
            raise NotOffered(
                f"proposal {proposal.id} was not carried out: {away[0]!r}, whose rules an edited"
                " call must pass, is not here; wait for it, or approve the call as it was proposed"
            )
        call = payloads.read_proposal(proposal.payload)
        params = write_params(
            JudgeParams(
                proposal=proposal.id,
                proposer=proposal.sender,
                digest=payloads.digest(call.method, call.params, call.target),
                arguments=arguments,
                target=target,
            )
        )
        rules = {rule.reviewer: rule for rule in told}
        calls = (call, payloads.edit_call(call, arguments, target))

        async def ask(reviewer: str) -> None:
            await self._ask(reviewer, proposal.id, params, rules.get(reviewer))

        await ask_each(self._find_deciders(proposal, calls, rules), ask, at_a_time=MAX_AT_A_TIME)

    def _find_deciders(
        self, proposal: Envelope, calls: Sequence[Call], told: Mapping[str, InboxRule]
    ) -> list[str]:
        """The participants that are to judge: those whose rule was told, and all who may decide.

        It is enough that they may carry out the call as it was proposed, or as it now is.
        """
        named = read_addressees(proposal, calls[0]).deciders
        others = [
            each.id
            for each in self._space.participants
            if each.id not in (self._space.me, proposal.sender) and (not named or each.id in named)
        ]
        deciders = {
            *(each.id for each in self._space.participants if each.id in told),
            *self._feed.find_who_may_carry_out(others, calls),
            *(each for each in others if self._feed.may_reject(each, proposal.sender)),
        }
        return sorted(deciders)

    async def _ask(
        self, reviewer: str, proposal: str, params: dict[str, Any], rule: InboxRule | None
    ) -> None:
        """Have one of them judge; one without the method is no reviewer.

        Raises:
            Refused: Its verdict does not let the call pass.
            NotOffered: There is no verdict of its.
            ConnectionFailed: Our own connection has failed.
        """
        not_carried_out = f"proposal {proposal} was not carried out"
        if not self._space.may_request(reviewer, JUDGE, params):
            raise NotOffered(
                f"{not_carried_out}: an edited call must pass the rules of every reviewer, and"
                f" {self._space.me!r} may not send {JUDGE} to {reviewer!r}, who may decide; ask for"
                " that capability, or approve the call as it was proposed"
            )
        try:
            said = as_object(
                await self._space.request(
                    reviewer, JUDGE, params, timeout=JUDGE_SECONDS, idempotent=True
                )
            )
        except ConnectionFailed:
            raise
        except MeupError as error:
            lacks = isinstance(error, RequestError) and error.code in payloads.UNKNOWN_METHOD
            if lacks and rule is None:
                return
            # Neither silence nor a failure is consent: it may be a reviewer with much to do, which
            # a proposer can bring about.
            raise NotOffered(
                f"{not_carried_out}: an edited call must pass the rules of every reviewer, and"
                f" {reviewer!r}, who may decide, has not judged it"
                f" ({printable(str(error)[:MAX_WORDS])}); try again, or approve the call as it was"
                " proposed"
            ) from error
        verdict, name = said.get("verdict"), as_object(said.get("rule")).get("name")
        counts_votes = rule is not None and rule.is_quorum
        if verdict in (("allow", "ask", "quorum") if counts_votes else ("allow", "ask")):
            return
        explain = said.get("explain")
        words = f": {printable(explain[:MAX_WORDS])}" if isinstance(explain, str) else ""
        raise Refused(
            "policy",
            f"{not_carried_out}: as it was edited, it is not let pass by"
            f" the rule {printable(str(name)[:MAX_NAME])!r} of {reviewer!r}{words}",
        )

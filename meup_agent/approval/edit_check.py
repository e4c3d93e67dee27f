"""Check of a person's edit: the rules of every reviewer that is here judge the call as it now is.

A rule that an inbox was told is no condition: a proposer that floods its space, or is fast, may
keep a reviewer's rule from being known, and an edit is not to run unjudged for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meup_agent.approval.reviewer_methods import JUDGE, VOTE, WAITING
from meup_agent.approval.tool_directory import LIST_SECONDS, MAX_AT_A_TIME
from meup_agent.client.ask_each import ask_each
from meup_agent.errors import (
    ConnectionFailed,
    MeupError,
    NotOffered,
    ParticipantGone,
    Refused,
    RequestError,
    printable,
)
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.outcomes import Responded, value_of
from meup_agent.protocol.payloads import as_object

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from meup_agent.approval.reviewer_rules import InboxRule
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.payloads import Call

JUDGE_SECONDS: Final = 30.0
"""Wait for a reviewer to judge an edited call."""

MAX_WORDS: Final = 500
"""Characters of a reviewer's words about an edited call that are told."""

MAX_NAME: Final = 100
"""Characters of a rule's name that are told."""

_TOOLS: Final = frozenset({VOTE, WAITING, JUDGE})


class EditCheck:
    """The check of edited calls by reviewers.

    A reviewer is a participant with the tools ``vote``, ``waiting`` and ``judge``. What it says can
    only hold a call back, so it is asked if it may carry the proposed call out, or reject it.

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
            NotOffered: A reviewer that asked for a decision is away, or we may not ask it, or one
                who may decide does not say whether it is a reviewer.
            MeupError: A reviewer does not answer; then nothing is certain, and nothing is sent.
        """
        if away:
            raise NotOffered(
                f"proposal {proposal.id} was not carried out: {away[0]!r}, whose rules an edited"
                " call must pass, is not here; wait for it, or approve the call as it was proposed"
            )
        call = payloads.read_proposal(proposal.payload)
        given: dict[str, object] = {"proposal": proposal.id, "proposer": proposal.sender}
        digest = payloads.digest(call.method, call.params, call.target)
        if digest is not None:
            given["digest"] = digest
        if target is not None:
            given["target"] = target
        params = {"name": JUDGE, "arguments": {**given, "arguments": arguments}}
        rules = {rule.reviewer: rule for rule in told}
        for reviewer in await self._reviewers(proposal, call, rules):
            await self._ask(reviewer, proposal.id, params, rules.get(reviewer))

    async def _reviewers(
        self, proposal: Envelope, call: Call, told: Mapping[str, InboxRule]
    ) -> list[str]:
        """The participants that are to judge, whether or not they have told a rule."""
        addressed, others = proposal.to, {self._space.me, proposal.sender}
        asked = [
            each.id
            for each in self._space.participants
            if each.id in told
            or (
                each.id not in others
                and (not addressed or each.id in addressed)
                and self._feed.may_decide(each.id, call)
            )
        ]

        async def ask(participant: str) -> bool:
            return await self._judges(participant, is_known=participant in told)

        judges = await ask_each(asked, ask, at_a_time=MAX_AT_A_TIME)
        return [each for each, it_judges in zip(asked, judges, strict=True) if it_judges]

    async def _judges(self, participant: str, *, is_known: bool) -> bool:
        """True for a reviewer that judges edits, or is known to be one and does not say so now.

        Raises:
            NotOffered: It does not give the list of its tools.
            ConnectionFailed: Our own connection has failed.
        """
        request = payloads.request("tools/list", {}, "")
        if not self._space.may(kinds.MCP_REQUEST, request, to=(participant,)):
            return is_known
        try:
            listed = await self._space.tools(participant, timeout=LIST_SECONDS)
        except ConnectionFailed:
            raise
        except ParticipantGone:
            return is_known
        except MeupError as error:
            if isinstance(error, RequestError) and error.code == payloads.METHOD_NOT_FOUND:
                return is_known  # it has no tools, so no reviewer's
            # Neither silence nor a failure is consent: it may be a reviewer with much to do, which
            # a proposer can bring about.
            raise NotOffered(
                f"an edited call must pass the rules of every reviewer, and {participant!r}, who"
                f" may decide, has not said within {LIST_SECONDS:g} s whether it is one; try again,"
                " or approve the call as it was proposed"
            ) from error
        names = {str(each.get("name")) for each in listed}
        return JUDGE in names if is_known else names >= _TOOLS

    async def _ask(
        self, reviewer: str, proposal: str, params: dict[str, Any], rule: InboxRule | None
    ) -> None:
        request = payloads.request("tools/call", params, "")
        if not self._space.may(kinds.MCP_REQUEST, request, to=(reviewer,)):
            raise NotOffered(
                f"proposal {proposal} was not carried out: {self._space.me!r} may not call the"
                f" tool judge of {reviewer!r}, whose rules an edited call must pass"
            )
        result = await self._space.request(
            reviewer, "tools/call", params, timeout=JUDGE_SECONDS, idempotent=True
        )
        said = as_object(value_of(Responded("", result)))
        verdict, name = said.get("verdict"), as_object(said.get("rule")).get("name")
        counts_votes = rule is not None and rule.is_quorum
        if verdict in (("allow", "ask", "quorum") if counts_votes else ("allow", "ask")):
            return
        explain = said.get("explain")
        words = f": {printable(explain[:MAX_WORDS])}" if isinstance(explain, str) else ""
        raise Refused(
            "policy",
            f"proposal {proposal} was not carried out: as it was edited, it is not let pass by"
            f" the rule {printable(str(name)[:MAX_NAME])!r} of {reviewer!r}{words}",
        )

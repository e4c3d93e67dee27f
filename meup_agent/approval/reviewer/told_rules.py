"""Rules that ask, and votes, as reviewers tell them; and their judgement of an edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.approval.reviewer.methods import JUDGE, JudgeParams
from meup_agent.approval.reviewer.tool_directory import MAX_AT_A_TIME
from meup_agent.client.messages import write_params
from meup_agent.client.offers import ask_each
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.errors import (
    ConnectionFailed,
    MeupError,
    NotOffered,
    Refused,
    RequestError,
    printable,
)
from meup_agent.protocol.dialects.base import read_addressees
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.payloads import as_object, objects_in

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import Call


# --- rules as they are told ---

MAX_TEXT: Final = 2_000
"""Characters of a rule that are kept."""

MAX_VOTERS: Final = 100
"""Voters of a rule that are kept."""


class InboxRule(msgspec.Struct, frozen=True):
    """The rule that asks for a decision, as a reviewer tells it.

    Attributes:
        reviewer: The participant whose rule it is.
        name: Its name.
        number: Its place in the policy; ``None``: no rule matched.
        text: The rule as it is written.
        kind: ``ask``: a person decides; ``quorum``: votes are counted.
        of: Votes that a quorum takes.
        among: Participants that may vote.
        votes: The votes so far, ``approve`` or ``reject`` by participant.
        deadline: The moment at which the reviewer waits no longer.
        digest: The digest of the call that it is about; empty where the reviewer does not say.
        takes_word: Who approves types a word.
    """

    reviewer: str
    name: str = ""
    number: int | None = None
    text: str = ""
    kind: str = "ask"
    of: int = 0
    among: tuple[str, ...] = ()
    votes: Mapping[str, str] = {}
    deadline: datetime | None = None
    digest: str = ""
    takes_word: bool = False

    @property
    def is_quorum(self) -> bool:
        """True if it counts votes."""
        return self.kind == "quorum"

    def counts_vote_of(self, participant: str) -> bool:
        """True if a participant may vote."""
        return self.is_quorum and participant in self.among


def read_waiting(reviewer: str, said: Mapping[str, Any]) -> Iterable[tuple[ProposalKey, InboxRule]]:
    """The rules that a reviewer's answer tells; what cannot be read is left out."""
    for each in objects_in(said.get("proposals")):
        proposal, proposer = each.get("proposal"), each.get("proposer")
        if isinstance(proposal, str) and isinstance(proposer, str):
            yield ProposalKey(proposer, proposal), read_rule(reviewer, each)


def read_rule(reviewer: str, said: Mapping[str, Any]) -> InboxRule:
    """The rule in one entry of a reviewer's answer."""
    rule = as_object(said.get("rule"))
    number, digest = rule.get("number"), said.get("digest")
    return InboxRule(
        reviewer,
        name=_text(rule.get("name")),
        number=number if isinstance(number, int) and not isinstance(number, bool) else None,
        text=_text(rule.get("text")),
        kind="quorum" if said.get("kind") == "quorum" else "ask",
        deadline=_moment(said.get("deadline")),
        digest=digest if isinstance(digest, str) else "",
        # What holds back is read widely: another way to confirm is not known here.
        takes_word=said.get("confirm") is not None,
        **read_count(said),
    )


def read_count(said: Mapping[str, Any]) -> dict[str, Any]:
    """The count in a reviewer's answer: ``of``, ``among`` and ``votes``."""
    of, among = said.get("of"), said.get("among")
    names = payloads.as_list(among)
    votes = {
        voter: str(vote)
        for voter, vote in list(as_object(said.get("votes")).items())[:MAX_VOTERS]
        if vote in ("approve", "reject")
    }
    return {
        "of": of if isinstance(of, int) and not isinstance(of, bool) else 0,
        "among": tuple(name for name in names[:MAX_VOTERS] if isinstance(name, str)),
        "votes": votes,
    }


def _text(value: object) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _moment(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


# --- check of a person's edit ---
# The rules of every reviewer that is here judge the call as it now is.
#
# A rule that an inbox was told is not a condition: one that floods its space, or hurries, may
# keep a reviewer's rule from being known, and an edit is not to run unjudged for that.

JUDGE_SECONDS: Final = 10.0
"""Wait for a verdict about an edited call, for which a reviewer may read a list of tools."""

MAX_WORDS: Final = 500
"""Characters of a reviewer's words about an edited call that are told."""

MAX_NAME: Final = 100
"""Characters of a rule's name that are told."""


async def check_edit(
    space: Space,
    proposal: Envelope,
    arguments: dict[str, Any],
    *,
    target: str | None = None,
    told: Collection[InboxRule] = (),
    away: Sequence[str] = (),
) -> None:
    """Have an edited call judged by reviewers.

    A reviewer is a participant that answers the method ``dev.meup/judge``. What it says can only
    hold a call back, so each participant is asked that may carry the proposed call out, or reject
    it.

    Args:
        space: The space.
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
        await _have_judged(space, reviewer, proposal.id, params, rules.get(reviewer))

    await ask_each(_find_deciders(space, proposal, calls, rules), ask, at_a_time=MAX_AT_A_TIME)


def _find_deciders(
    space: Space, proposal: Envelope, calls: Sequence[Call], told: Collection[str]
) -> list[str]:
    """The participants that are to judge: those whose rule was told, and all who may decide.

    It is enough that they may carry out the call as it was proposed, or as it now is.
    """
    feed, here = ProposalFeed(space), [each.id for each in space.participants]
    named = read_addressees(proposal, calls[0]).deciders
    others = [
        each
        for each in here
        if each not in (space.me, proposal.sender) and (not named or each in named)
    ]
    deciders = {
        *(each for each in here if each in told),
        *feed.find_who_may_carry_out(others, calls),
        *(each for each in others if feed.may_reject(each, proposal.sender)),
    }
    return sorted(deciders)


async def _have_judged(
    space: Space,
    reviewer: str,
    proposal: str,
    params: dict[str, Any],
    rule: InboxRule | None,
) -> None:
    """Have one of them judge; one without the method is not a reviewer.

    Raises:
        Refused: Its verdict does not let the call pass.
        NotOffered: There is no verdict of its.
        ConnectionFailed: Our own connection has failed.
    """
    not_carried_out = f"proposal {proposal} was not carried out"
    if not space.may_request(reviewer, JUDGE, params):
        raise NotOffered(
            f"{not_carried_out}: an edited call must pass the rules of every reviewer, and"
            f" {space.me!r} may not send {JUDGE} to {reviewer!r}, who may decide; ask for"
            " that capability, or approve the call as it was proposed"
        )
    try:
        said = as_object(
            await space.request(reviewer, JUDGE, params, timeout=JUDGE_SECONDS, idempotent=True)
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

"""Rules that ask, and votes, as the reviewers of a space tell them by their tool ``waiting``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import msgspec

from meup_agent.approval.reviewer_methods import VOTE, WAITING
from meup_agent.approval.tool_directory import ToolDirectory
from meup_agent.errors import MeupError, printable
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.outcomes import Responded, value_of
from meup_agent.protocol.payloads import as_object, objects_in
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope

log = logging.getLogger("meup_agent.approval")

_VOTE_NAME: Final = VOTE.encode()

ASK_SECONDS: Final = 5.0
"""Wait for a reviewer's answer."""

PAUSE_SECONDS: Final = 0.25
"""Pause between two questions to a reviewer, so that a flood of votes is no flood of questions."""

PAUSE_PER_PROPOSAL: Final = 0.002
"""Seconds of that pause for each proposal in an answer, where that is longer: a thousand are half a
megabyte, which the reviewer, the gateway and each inbox read."""

AGAIN_SECONDS: Final = 15.0
"""Interval at which reviewers are asked although nothing happened: a policy file may change."""

MAX_VOTES: Final = 1_000
"""Votes of others whose answers are waited for; that of one that is forgotten is heard of at the
next question."""

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
    """

    reviewer: str
    name: str = ""
    number: int | None = None
    text: str = ""
    kind: str = "ask"
    of: int = 0
    among: tuple[str, ...] = ()
    votes: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    deadline: datetime | None = None
    digest: str = ""

    @property
    def is_quorum(self) -> bool:
        """True if it counts votes."""
        return self.kind == "quorum"

    def counts_vote_of(self, participant: str) -> bool:
        """True if a participant may vote."""
        return self.is_quorum and participant in self.among


class ReviewerRules:
    """The rules of all reviewers for what waits.

    A reviewer is a participant with the tools ``vote`` and ``waiting``. Any participant may have
    such tools, so what one says counts only for calls that it may carry out itself.

    Args:
        space: The space.
        directory: The tools of its participants.
        told: Handed what a reviewer says, whole.
        seek: Asks for the tools of those who may be reviewers.
        asked: Called when each of them has been asked.
    """

    def __init__(
        self,
        space: Space,
        directory: ToolDirectory,
        told: Callable[[str, dict[ProposalKey, InboxRule]], None],
        seek: Callable[[], None],
        asked: Callable[[], None],
    ) -> None:
        self._space = space
        self._directory = directory
        self._told = told
        self._seek = seek
        self._asked = asked
        self._changed = Condition()
        # Others' votes without an answer so far, by voter and id.
        self._votes: dict[tuple[str, str], None] = {}
        self._is_due = True
        self._young_since: float | None = None
        self.has_asked = False

    @property
    def reviewers(self) -> list[str]:
        """The participants here that have the tools of a reviewer."""
        # Few are known to have any tools, of the many who may be here.
        found = {name for name in self._directory.known if self._has(name)} - {self._space.me}
        return [each.id for each in self._space.participants if each.id in found] if found else []

    def _has(self, participant: str) -> bool:
        tools = self._directory.tools(participant) or {}
        return VOTE in tools and WAITING in tools

    def takes_digest(self, reviewer: str) -> bool:
        """True if a reviewer's ``vote`` takes the digest of the call that was looked at."""
        tool = (self._directory.tools(reviewer) or {}).get(VOTE)
        return tool is not None and "digest" in as_object(tool.schema.get("properties"))

    def look_again(self, *, since: float | None = None) -> None:
        """Ask all reviewers soon.

        Args:
            since: The moment at which a proposal came. A reviewer may have to read a list of tools
                before it knows its rule, so it is asked more than once.
        """
        self._is_due = True
        if since is not None:
            self._young_since = since
        self._changed.notify_all()

    def hear(self, envelope: Envelope) -> None:
        """Ask again once a reviewer has answered the vote of another one: it was counted, perhaps.

        An answer to a question like ours is no reason: two inboxes would ask each other for ever.
        """
        if self._space.me in (envelope.sender, *envelope.to):
            return
        if envelope.kind == kinds.MCP_REQUEST and _is_vote(envelope):
            self._votes[envelope.sender, envelope.id] = None
            if len(self._votes) > MAX_VOTES:
                del self._votes[next(iter(self._votes))]
        elif envelope.kind == kinds.MCP_RESPONSE and self._votes:
            answered = [
                (voter, each)
                for voter in envelope.to
                for each in envelope.correlation
                if (voter, each) in self._votes
            ]
            for each in answered:
                del self._votes[each]
            if answered and self._has(envelope.sender):
                self.look_again()

    async def run(self) -> None:
        """Ask, until cancelled."""
        pause = PAUSE_SECONDS
        while True:
            self._seek()
            if self._is_due and self._directory.is_settled:
                self._is_due = False
                told = [await self._ask(reviewer) for reviewer in self.reviewers]
                pause = max([PAUSE_SECONDS, *(count * PAUSE_PER_PROPOSAL for count in told)])
                self.has_asked = True
                self._asked()
            with anyio.move_on_after(self._pause()):
                while not self._is_due:
                    await self._changed.wait()
            await anyio.sleep(pause)
            self._is_due = True

    def _pause(self) -> float:
        """Seconds until reviewers are asked again, if nothing happens."""
        if self._young_since is None:
            return AGAIN_SECONDS
        # A quarter of a second after a proposal came, then half a second, and so on.
        age = anyio.current_time() - self._young_since
        if age > AGAIN_SECONDS:
            self._young_since = None
        return min(max(age, PAUSE_SECONDS), AGAIN_SECONDS)

    async def _ask(self, reviewer: str) -> int:
        """Ask one of them; how many proposals it told of."""
        params: dict[str, Any] = {"name": WAITING, "arguments": {}}
        if not self._space.may(kinds.MCP_REQUEST, payloads.request("tools/call", params, "")):
            return 0
        try:
            result = await self._space.request(
                reviewer, "tools/call", params, timeout=ASK_SECONDS, idempotent=True
            )
            said = as_object(value_of(Responded("", result)))
        except MeupError as error:
            log.info("%r does not tell what waits: %s", reviewer, printable(str(error)))
            return 0
        rules = dict(read_waiting(reviewer, said))
        self._told(reviewer, rules)
        return len(rules)


def _is_vote(envelope: Envelope) -> bool:
    """True for a call of a tool ``vote``."""
    if _VOTE_NAME not in envelope.raw_payload:
        return False
    payload = as_object(envelope.payload)
    return (
        payload.get("method") == "tools/call"
        and as_object(payload.get("params")).get("name") == VOTE
    )


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
        **read_count(said),
    )


def read_count(said: Mapping[str, Any]) -> dict[str, Any]:
    """The count in a reviewer's answer: ``of``, ``among`` and ``votes``."""
    of, among = said.get("of"), said.get("among")
    names = cast("list[object]", among) if isinstance(among, list) else []
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

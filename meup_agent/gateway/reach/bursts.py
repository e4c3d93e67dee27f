"""Bursts: which proposals a service was told of, and when it is told again. No I/O, no clock."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from meup_agent.protocol.proposals import ProposalKey, ProposalState
from meup_agent.protocol.space.state.indexes import OpenItem
from meup_agent.protocol.wire.envelope import rfc3339

PAUSE_SECONDS: Final = 30.0
"""Seconds between two notices that something waits: what comes meanwhile is told by one."""

LONGEST_PAUSE: Final = 600.0
"""Seconds until the next attempt at a service that has failed often."""

WATCH_SECONDS: Final = 15.0
"""Interval of looking while something waits: no envelope may say that a proposal has expired."""

MAX_TOLD: Final = 1_000
"""Proposals of a burst whose ends are counted when it is settled."""

MAX_LISTED: Final = 20
"""Proposals that a notice names; of more it says how many."""

MAX_NAME_CHARS: Final = 40
"""Characters of a name in the words of a notice."""

MAX_GROUPS: Final = 5
"""Lines of a notice about tools."""


class InboxNotice(NamedTuple):
    """A notice, as each service words it in its own form."""

    id: str  # the same if it is sent again
    burst: str  # the same in all notices of a burst
    space: str
    total: int
    """Of what waits: the number of proposals. Of what is settled: those that were told of."""
    calls: tuple[OpenItem, ...] = ()  # the oldest ones; none: all that was told of is settled
    keys: tuple[ProposalKey, ...] = ()  # of all that wait
    ends: Mapping[str, int] = {}  # of what is settled: how many ended in which way

    @property
    def settled(self) -> bool:
        """True if nothing waits any more of what was told."""
        return not self.calls

    @property
    def title(self) -> str:
        """One line, without text of a stranger."""
        what = f"{self.total} call{'' if self.total == 1 else 's'}"
        if self.settled:
            return f"Settled: {what}"
        return f"{what} wait{'s' if self.total == 1 else ''} for a decision"

    @property
    def text(self) -> str:
        """A few lines in which strangers' names can be no link, mention or markup."""
        if self.settled:
            return ", ".join(f"{count} {state}" for state, count in self.ends.items())
        groups = Counter((each.proposer, each.called[1] or each.called[0]) for each in self.calls)
        lines = [
            f"{plain_name(proposer)}: {plain_name(tool)}{f' × {count}' if count > 1 else ''}"
            for (proposer, tool), count in groups.most_common(MAX_GROUPS)
        ]
        told = sum(count for _, count in groups.most_common(MAX_GROUPS))
        if self.total > told:
            lines.append(f"and {self.total - told} more")
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """The notice for programs; names in it are as they came."""
        said: dict[str, Any] = {
            "burst": self.burst,
            "space": self.space,
            "count": self.total,
            "title": self.title,
            "text": self.text,
        }
        if self.settled:
            return said | {"ends": dict(self.ends)}
        return said | {"proposals": [_described(each) for each in self.calls]}


def _described(item: OpenItem) -> dict[str, Any]:
    method, tool = item.called
    said = {"id": item.envelope.id, "proposer": item.proposer, "method": method, "tool": tool}
    if item.addressees.executor:
        said["target"] = item.addressees.executor
    said["proposed_at"] = rfc3339(item.at)
    if item.expires_at is not None:
        said["expires_at"] = rfc3339(item.expires_at)
    return said


def plain_name(name: str) -> str:
    """A name in letters, digits, ``-`` and ``_``; any other character is a middle dot.

    Services make links of addresses, mentions of ``@``, and markup of much else.
    """
    cut = name[: MAX_NAME_CHARS + 1]
    plain = "".join(each if each.isalnum() or each in "-_" else "·" for each in cut)
    return plain if len(cut) <= MAX_NAME_CHARS else plain[: MAX_NAME_CHARS - 1] + "…"


def _end_in(state: ProposalState | None) -> str:
    """The way in which a proposal waits no longer, in a word."""
    if state is ProposalState.IN_PROGRESS:
        return "approved"  # its call runs
    # One that is pending was rejected by whom the notices are for, and waits for others.
    return "forgotten" if state is None else "left to others" if state.is_pending else str(state)


class BurstTracker:
    """Keeps what one service was told of the proposals of one space.

    Args:
        space: The space.
        after: Seconds that a proposal must have waited; what a rule decides before is never told.
    """

    def __init__(self, space: str, after: float) -> None:
        self.due = math.inf
        """The time at which to look again, though nothing has changed."""
        self._space = space
        self._after = after
        self._since: dict[ProposalKey, float] = {}
        self._told: dict[ProposalKey, None] = {}
        self._burst = ""
        self._failures = 0
        self._not_before = -math.inf

    def look(
        self,
        waiting: Sequence[OpenItem],
        now: float,
        state_of: Callable[[ProposalKey], ProposalState | None],
    ) -> InboxNotice | None:
        """The notice that is due; then :meth:`sent` or :meth:`failed` is to be called.

        Args:
            waiting: The proposals that wait, the oldest first.
            now: The time, in seconds of any clock.
            state_of: Tells the state of a proposal; ``None``: it was forgotten.
        """
        here = {each.key: each for each in waiting}
        self._since = {key: self._since.get(key, now) for key in here}
        young = [since for since in self._since.values() if since + self._after > now]
        self.due = min(young, default=math.inf) + self._after
        if here or self._told:
            self.due = min(self.due, now + WATCH_SECONDS)
        ripe = {key for key, since in self._since.items() if since + self._after <= now}
        is_settled = bool(self._told) and not self._told.keys() & here.keys()
        if not is_settled and ripe <= self._told.keys():
            if not self._told:
                self._burst = ""
            return None
        # The end of a burst waits for no pause, but for a service that has failed.
        if now < self._not_before and (self._failures or not is_settled):
            self.due = min(self.due, self._not_before)
            return None
        if is_settled:
            ends = Counter(_end_in(state_of(key)) for key in self._told)
            name = f"{self._burst}.settled"
            return InboxNotice(name, self._burst, self._space, ends.total(), ends=ends)
        self._burst = self._burst or secrets.token_hex(8)
        shown = [each for key, each in here.items() if key in ripe or key in self._told]
        # By what it says: a service that has it, and was too slow to say so, may know it again.
        said = hashlib.sha256(repr([each.key for each in shown]).encode()).hexdigest()
        name = f"{self._burst}.{said[:16]}"
        keys = tuple(each.key for each in shown)
        return InboxNotice(
            name, self._burst, self._space, len(shown), tuple(shown[:MAX_LISTED]), keys
        )

    def sent(self, notice: InboxNotice, now: float) -> None:
        """Note that a service took a notice."""
        self._failures = 0
        if notice.settled:
            self._told, self._burst = {}, ""
            return
        self._not_before = now + PAUSE_SECONDS
        self._told |= dict.fromkeys(notice.keys)
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]

    def failed(self, now: float) -> float:
        """Note that a service did not take a notice; the seconds until the next attempt."""
        pause: float = min(PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 10)
        self._not_before = now + pause
        return pause

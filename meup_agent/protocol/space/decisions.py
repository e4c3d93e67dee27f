"""The rows of the table of decisions, and the questions that are answered from them.

A journal makes a row of each proposal from the changes that a space hands it with its entries, and
answers who decided what from these rows alone: nothing is folded, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from meup_agent.protocol.proposals.lifecycle import UNPERMITTED, ProposalState

MAX_SEARCHED: Final = 100_000
"""Decisions that one question looks through, newest first; a page says where it stopped, and the
next question goes on there. So none holds up other readers for longer than a fraction of a
second."""

MAX_PERMITS: Final = 10_000
"""Permits whose report is waited for; of more, the oldest stay as they are."""

MAX_UNPERMITTED: Final = 1_000
"""Calls without a permit of which it is noted that they ran; of more, not of the oldest."""

MAX_KEPT_TEXT: Final = 200
"""Characters of a rule's name and of a reason that a row keeps; a decider writes them."""


class ProposalChange(NamedTuple):
    """A proposal that an envelope begins, gives more time, or ends; as the space decided it."""

    proposer: str
    id: str
    tool: str  # the tool (or prompt) that it calls; empty: its method has none
    expires_at: int | None  # its deadline, in microseconds since 1970 (UTC)
    # Its last state, where it has ended; pending then: it was forgotten, and not decided.
    state: ProposalState = ProposalState.PENDING
    begins: bool = False
    ended: bool = False
    at: int = 0  # the time of this change, in microseconds since 1970 (UTC)
    # Of one that has ended: the participant that decided it, its reason code, and the rule that it
    # named; empty: none. ``failed``: it was fulfilled, by an answer that is an error, or its call
    # ran without a permit.
    by: str = ""
    reason: str = ""
    rule: str = ""
    failed: bool = False


class DecisionRow(NamedTuple):
    """A proposal, as the table has it; times are in microseconds since 1970 (UTC)."""

    seq: int
    space: str
    proposer: str
    id: str
    tool: str
    proposed_at: int
    # The time at which it ended; while it is open, its deadline; ``None``: it has none.
    ends_at: int | None
    # ``pending`` also where a request is out, or its time is over: what tells that is the time.
    # ``permitted`` until its outcome is reported.
    state: str
    decided: int | None = None  # the number of the entry that ended it
    by: str = ""
    reason: str = ""
    rule: str = ""
    failed: int = 0  # 1: it was fulfilled, by an answer that is an error, or ran without a permit

    @property
    def ran_anyway(self) -> bool:
        """True if its call ran, though no permit was given."""
        return bool(self.failed) and self.state in UNPERMITTED

    @property
    def waited(self) -> int:
        """Microseconds from the proposal to its end."""
        return max((self.ends_at or self.proposed_at) - self.proposed_at, 0)


class DecisionFollower:
    """Makes the rows of what entries change; follows what is open."""

    def __init__(self, rows: Iterable[DecisionRow] = ()) -> None:
        self._open = dict[tuple[str, str, str], DecisionRow]()
        # Those that wait for their reports, the oldest first.
        self._permits = dict[tuple[str, str, str], DecisionRow]()
        # Those that got none, and may be reported to have run.
        self._unpermitted = dict[tuple[str, str, str], DecisionRow]()
        for row in rows:
            waiting = self._permits if row.state == ProposalState.PERMITTED else self._open
            waiting[row.space, row.proposer, row.id] = row

    def follow(
        self, number: int, space: str, changes: Iterable[ProposalChange]
    ) -> list[DecisionRow]:
        """The rows that the entry with a number changes."""
        rows, opened = list[DecisionRow](), self._open
        for each in changes:
            key = (space, each.proposer, each.id)
            if each.begins:
                row = opened[key] = DecisionRow(
                    number, *key, each.tool, each.at, each.expires_at, each.state
                )
                rows.append(row)
                continue
            permitted = None if key in opened else self._permits.pop(key, None)
            if permitted is not None and each.state is ProposalState.FULFILLED:
                rows.append(permitted._replace(state=each.state, failed=int(each.failed)))
            if each.ended and key not in opened and key in self._unpermitted:
                rows.append(self._unpermitted.pop(key)._replace(failed=int(each.failed)))
            known = opened.get(key)
            if known is None:
                continue
            if not each.ended:
                row = opened[key] = known._replace(ends_at=each.expires_at)
                rows.append(row)
                continue
            del opened[key]
            if not each.state.is_pending:  # else it was forgotten, or its id is used again
                decided = None if each.state is ProposalState.EXPIRED else number
                row = known._replace(
                    ends_at=each.at,
                    state=each.state,
                    decided=decided,
                    by=each.by,
                    reason=each.reason[:MAX_KEPT_TEXT],
                    rule=each.rule[:MAX_KEPT_TEXT],
                    failed=int(each.failed),
                )
                rows.append(row)
                if each.state is ProposalState.PERMITTED:
                    _keep(self._permits, key, row, MAX_PERMITS)
                elif each.state in UNPERMITTED:
                    _keep(self._unpermitted, key, row, MAX_UNPERMITTED)
        return rows


def _keep(
    kept: dict[tuple[str, str, str], DecisionRow],
    key: tuple[str, str, str],
    row: DecisionRow,
    count: int,
) -> None:
    """Keep a row as the latest, and at most so many."""
    kept.pop(key, None)
    kept[key] = row
    if len(kept) > count:
        del kept[next(iter(kept))]


SORT_KEYS: Final[dict[str, Callable[[DecisionRow], int | str]]] = {
    "when": lambda row: row.ends_at or 0,
    "tool": lambda row: row.tool,
    "proposer": lambda row: row.proposer,
    "state": lambda row: row.state,
    "by": lambda row: row.by,
    "rule": lambda row: row.rule,
    "waited": lambda row: row.waited,
}
"""The columns by which decisions are sorted."""


class HistoryQuery(NamedTuple):
    """Selects decided and expired proposals of a space, newest first unless it says otherwise."""

    until: int  # a time in microseconds since 1970 (UTC): only what had ended by then
    # The numbers of those that are open still, though their deadline was before that.
    still_open: frozenset[int] = frozenset()
    text: str = ""  # is somewhere in tool, proposer, decider, rule, reason or id; case is ignored
    states: frozenset[ProposalState] = frozenset()  # one of these; empty: any
    tool: str = ""
    proposer: str = ""
    by: str = ""
    after: int = -1  # only what ended after this time
    sort: str = "when"
    ascending: bool = False
    skip: int = 0  # so many of those that are found
    limit: int = 50

    def takes(self, row: DecisionRow) -> bool:
        """True for a row that has ended, and is selected; its state must be the real one."""
        return (
            (not self.states or row.state in self.states)
            and self.tool in ("", row.tool)
            and self.proposer in ("", row.proposer)
            and self.by in ("", row.by)
            and (not self.text or _lower(self.text) in _lower("\n".join(_searched(row))))
        )


class HistoryPage(NamedTuple):
    """Decided and expired proposals."""

    rows: tuple[DecisionRow, ...] = ()
    more: bool = False  # more were found than the page has
    # Nothing that ended before this time was looked through; ``None``: all was.
    searched_to: int | None = None


def _searched(row: DecisionRow) -> Iterator[str]:
    yield from (row.tool, row.proposer, row.by, row.rule, row.reason, row.id)


def _lower(text: str) -> bytes:
    # As SQLite does it: the letters of ASCII alone.
    return text.encode(errors="surrogatepass").lower()


def select_decisions(rows: Iterable[DecisionRow], query: HistoryQuery) -> HistoryPage:
    """The page of a query, from rows in any order."""
    ended = [each for row in rows if (each := _as_ended(row, query)) is not None]
    ended.sort(key=lambda row: (row.ends_at or 0, row.seq), reverse=True)
    looked_through: Sequence[DecisionRow] = ended[:MAX_SEARCHED]
    found = [row for row in looked_through if query.takes(row)]
    if (query.sort, query.ascending) != ("when", False):
        found.sort(key=SORT_KEYS[query.sort], reverse=not query.ascending)
    page = tuple(islice(found, query.skip, query.skip + query.limit))
    is_all = len(looked_through) == len(ended)
    last = None if is_all else looked_through[-1].ends_at
    return HistoryPage(page, len(found) > query.skip + query.limit, last)


def _as_ended(row: DecisionRow, query: HistoryQuery) -> DecisionRow | None:
    """A row with its state at the time of a query; ``None``: it is open, or not of that time."""
    if row.ends_at is None or not query.after < row.ends_at <= query.until:
        return None
    if row.state != ProposalState.PENDING:
        return row
    return None if row.seq in query.still_open else row._replace(state=ProposalState.EXPIRED)

"""The history of a space: what was decided and what expired, from the table of decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.edge.handshake import is_seq
from meup_agent.gateway.edge.http.context import (
    Json,
    authorize_space,
    await_callback,
    bad_query,
)
from meup_agent.gateway.edge.http.messages import page_size
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.journal import SORT_KEYS, DecisionRow, HistoryPage, HistoryQuery
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.wire.envelope import moment_of, rfc3339

MAX_UNSEEN: Final = 100
"""Expiries not seen yet that are counted; of more it is said that there are."""

MAX_SKIP: Final = 1_000_000
"""Decisions that a page may leave out before it begins."""

MAX_QUERY_CHARS: Final = 200
"""Characters of a text that is searched for."""

OVER: Final = tuple(each for each in ProposalState if not each.is_pending)
"""The states in which a proposal has ended."""


class HistoryView(NamedTuple):
    """A page of the history of a space, for one participant."""

    query: HistoryQuery
    page: HistoryPage
    seen: int  # what had expired by then it has seen, in microseconds since 1970 (UTC)
    unseen: int  # expiries that it has not seen; MAX_UNSEEN: so many, or more

    def is_unseen(self, row: DecisionRow) -> bool:
        return row.state == ProposalState.EXPIRED and (row.ends_at or 0) > self.seen

    @property
    def following(self) -> dict[str, str]:
        """The parameters of the next page beside those of the query; none: this is the last."""
        if self.page.more:
            skip = self.query.skip + self.query.limit
            return {"until": _exact(self.query.until), "skip": str(skip)}
        if self.page.searched_to is not None:
            # Those of the same moment come once more, unless they are all that was looked through.
            before = min(self.page.searched_to, self.query.until - 1)
            return {"until": _exact(before)}
        return {}


def _exact(at: int) -> str:
    """A time to the microsecond: of one that is cut, a page would leave something out."""
    return moment_of(at).isoformat()


def read_query(host: SpaceServer, given: QueryParams, limit: int) -> HistoryQuery:
    """The query that an address says.

    Raises:
        Problem: It means nothing.
    """
    states = frozenset(filter(None, given.getlist("state")))
    if not states <= set(map(str, OVER)):
        raise bad_query(f"state must be one of {', '.join(OVER)}")
    sort = given.get("sort") or "-when"
    if (column := sort.removeprefix("-")) not in SORT_KEYS:
        raise bad_query(f"sort must be one of {', '.join(SORT_KEYS)}, perhaps after a minus sign")
    texts = {name: given.get(name, "").strip() for name in ("search", "tool", "proposer", "by")}
    if any(len(text) > MAX_QUERY_CHARS for text in texts.values()):
        raise bad_query(f"a text to search for has {MAX_QUERY_CHARS} characters at most")
    skip = given.get("skip") or "0"
    if not (is_seq(skip) and int(skip) <= MAX_SKIP):
        raise bad_query(f"skip must be a number up to {MAX_SKIP:,}")
    now, until = host.now(), given.get("until", "")
    return HistoryQuery(
        until=_moment(until) if until else now,
        still_open=host.owner.open_at(now),
        text=texts["search"],
        tool=texts["tool"],
        proposer=texts["proposer"],
        by=texts["by"],
        states=frozenset(map(ProposalState, states)),
        sort=column,
        ascending=not sort.startswith("-"),
        skip=int(skip),
        limit=limit,
    )


def _moment(said: str) -> int:
    try:
        # A plus sign in a query means a blank.
        moment = datetime.fromisoformat(said.replace(" ", "+"))
        if moment.tzinfo is None:
            raise ValueError
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise bad_query("until must be a time (RFC 3339), with its zone") from None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


async def find_history(host: SpaceServer, participant: str, query: HistoryQuery) -> HistoryView:
    """A page of a space's history, with what its reader has not seen."""
    page = await _find(host, query)
    seen = host.journal.seen(host.name, participant)
    return HistoryView(query, page, seen, await count_unseen(host, participant))


async def count_unseen(host: SpaceServer, participant: str) -> int:
    """The number of expiries that a participant has not seen; at most :data:`MAX_UNSEEN`."""
    now = host.now()
    query = HistoryQuery(
        until=now,
        still_open=host.owner.open_at(now),
        states=frozenset({ProposalState.EXPIRED}),
        after=host.journal.seen(host.name, participant),
        limit=MAX_UNSEEN,
    )
    return len((await _find(host, query)).rows)


async def _find(host: SpaceServer, query: HistoryQuery) -> HistoryPage:
    ask = partial(host.journal.find_decisions, host.name, query)
    found: HistoryPage = await await_callback(lambda tell: ask(then=tell))
    return found


def decision_as_json(history: HistoryView, row: DecisionRow) -> dict[str, Any]:
    """A decision for programs."""
    ended = row.ends_at or row.proposed_at
    return {
        "seq": row.seq,
        "id": row.id,
        "proposer": row.proposer,
        "tool": row.tool,
        "state": row.state,
        "failed": bool(row.failed) and not row.ran_anyway,
        "ran_anyway": row.ran_anyway,
        "by": row.by,
        "rule": row.rule,
        "reason": row.reason,
        "proposed_at": rfc3339(row.proposed_at),
        "at": rfc3339(ended),
        "waited": row.waited / 1_000_000,
        "seen": not history.is_unseen(row),
    }


async def get_history(runtime: GatewayRuntime, request: Request) -> Response:
    """A page of what was decided and what expired."""
    identity, host = authorize_space(runtime, request)
    query = read_query(host, request.query_params, page_size(request))
    history = await find_history(host, identity.participant, query)
    return Json(
        {
            "decisions": [decision_as_json(history, each) for each in history.page.rows],
            "next": history.following or None,
            "unseen": history.unseen,
            "now": _exact(query.until),
        }
    )


async def post_seen(runtime: GatewayRuntime, request: Request) -> Response:
    """Note that the caller has seen what had expired at a time."""
    identity, host = authorize_space(runtime, request)
    until = request.query_params.get("until", "")
    at = min(_moment(until), host.now()) if until else host.now()
    host.journal.mark_seen(host.name, identity.participant, at)
    return Json({"unseen": await count_unseen(host, identity.participant)})

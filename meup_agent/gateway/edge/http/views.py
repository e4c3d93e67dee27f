"""Views of a space and a gateway over HTTP: members, proposals, history, health and metrics."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.auth import FORBIDDEN, RETRY_AFTER, UNAVAILABLE
from meup_agent.gateway.config import REFERENCE_DIALECT
from meup_agent.gateway.edge.handshake import is_seq
from meup_agent.gateway.edge.http.context import (
    Json,
    Problem,
    authenticate,
    authorize_space,
    await_callback,
    bad_query,
    read_flag,
    read_journal,
    read_time,
)
from meup_agent.gateway.edge.http.messages import page_size
from meup_agent.gateway.edge.listener import address_of_client
from meup_agent.gateway.logs import quote
from meup_agent.gateway.network import is_loopback
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.audit import Audit, proposal_as_json
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.journal import (
    MAX_SEQ,
    SORT_KEYS,
    DecisionRow,
    Entry,
    FoldBegin,
    HistoryPage,
    HistoryQuery,
    Journal,
)
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.wire.envelope import TRANSIT_SECONDS, moment_of, rfc3339
from meup_agent.transport.http import (
    host_name,
    is_forwarded,
)

# --- the state of a space over HTTP ---
# Its members, the caller, and its proposals.


async def get_me(runtime: GatewayRuntime, request: Request) -> Response:
    """The participant of the token."""
    identity = authenticate(runtime, request)
    host = runtime.spaces[identity.space]
    return Json(
        {
            "id": identity.participant,
            "space": identity.space,
            "dialect": runtime.dialect(identity),
            "capabilities": list(host.owner.grants[identity.participant].patterns),
        }
    )


async def get_participants(runtime: GatewayRuntime, request: Request) -> Response:
    """The members of the space, as a welcome lists them."""
    _, host = authorize_space(runtime, request)
    return Json({"participants": host.owner.described()})


MAX_FOLDED: Final = 10_000
"""Proposals of a space that are shown; one that was decided is forgotten first."""

FOLD_PAGE: Final = 200
"""Entries that are read at a time to be folded."""

FOLD_TURN: Final = 40
"""Entries that are folded in one turn of the loop, a few milliseconds: members are heard in
between."""


TRANSIT: Final = round(TRANSIT_SECONDS * 1_000_000)


class SpaceAudit:
    """The proposals of one space, which each reading brings up to date."""

    def __init__(self) -> None:
        self.audit = Audit(limit=MAX_FOLDED)
        self.gap = False
        self._lock = anyio.Lock()
        # The last number that was folded, or is not to be; none before the first reading.
        self._seen: int | None = None
        self._older = deque[Entry]()

    async def catch_up(self, host: SpaceServer) -> None:
        """Fold what was accepted since the last time, up to now."""
        at, floor = host.now(), host.journal.floor(host.name)
        if host.journal.damaged(host.name, after=floor, until=MAX_SEQ):
            self.gap = True
        async with self._lock:
            if self._seen is None:
                find_begin = partial(host.journal.find_begin, host.name, proposals=MAX_FOLDED)
                begin: FoldBegin = await await_callback(lambda tell: find_begin(then=tell))
                self._seen, self._older = begin.after, deque(begin.older)
            until = host.fanout.delivered
            while self._older or self._seen < until:
                entries = tuple(islice(self._older, FOLD_PAGE))
                if not entries:
                    floor = host.journal.floor(host.name)
                    self.gap = self.gap or 0 < self._seen < floor
                    after = max(self._seen, floor)
                    entries = await read_journal(host, after=after, until=until, limit=FOLD_PAGE)
                    if not entries:
                        self._seen = until
                for nth, entry in enumerate(entries, 1):
                    self.audit.add(entry)
                    if self._older:
                        self._older.popleft()
                    else:
                        self._seen = entry.seq
                    if nth % FOLD_TURN == 0:
                        await checkpoint()  # where it is cancelled, the next one goes on
                await checkpoint()
            # A request that was accepted in time may still be on its way into the journal.
            self.audit.pass_time(at - TRANSIT)


_proposals_by_space: WeakKeyDictionary[SpaceServer, SpaceAudit] = WeakKeyDictionary()


def proposals_of(host: SpaceServer) -> SpaceAudit:
    return _proposals_by_space.setdefault(host, SpaceAudit())


async def current_proposals(host: SpaceServer) -> SpaceAudit:
    """The proposals of a space, as they are now."""
    proposals = proposals_of(host)
    await proposals.catch_up(host)
    return proposals


async def get_proposals(runtime: GatewayRuntime, request: Request) -> Response:
    """The latest proposals, oldest first, each with its outcome."""
    _, host = authorize_space(runtime, request)
    query = request.query_params
    wanted, state, limit = query.get("id"), query.get("state"), page_size(request)
    if state is not None and state not in set(ProposalState):
        raise bad_query(f"state must be one of {', '.join(ProposalState)}")
    timeline, before = read_flag(request, "timeline", False), query.get("before", "")
    if before and not is_seq(before):
        raise bad_query("before must be a proposal's 'seq'")
    proposals = await current_proposals(host)
    audit = proposals.audit
    named = audit.proposals if wanted is None else audit.named(wanted)
    end = int(before) if before else math.inf
    found = [each for each in named if state in (None, each.state) and each.first.seq < end]
    page = found[-limit:]
    said = list[dict[str, Any]]()
    for each in page:
        # The time at which its proposer left, who may come back.
        pending = each.state.is_pending
        waits = pending and not each.call.outlives
        left = host.owner.left_after(each.proposer, each.first.at) if waits else None
        shown = proposal_as_json(each, timeline=timeline)
        said.append({**shown, "proposer_left": None if left is None else rfc3339(left)})
    older = page[0].first.seq if len(found) > limit else None
    return Json({"proposals": said, "before": older, "gap": proposals.gap})


# --- existing paths ---
# The paths of existing gateways, for what watches over a space that exists.

FEATURES: Final = ("capabilities", "context", "validation", "http-io")
"""The features that existing gateways name."""


async def get_health(runtime: GatewayRuntime, request: Request) -> Response:
    """The gateway runs, with numbers that tell nothing of anyone."""
    return Json(
        {
            "status": "ok",
            "spaces": len(runtime.spaces),
            "clients": sum(len(space.owner) for space in runtime.spaces.values()),
            "uptime": round(time.monotonic() - runtime.began, 3),
            "features": list(FEATURES),
        }
    )


async def list_participants(runtime: GatewayRuntime, request: Request) -> Response:
    """The members of the space that is asked for, else of the caller's or the only one."""
    wanted = request.query_params.get("space")
    if "authorization" in request.headers or not _is_local(runtime, request):
        identity = authenticate(runtime, request)
        if wanted not in (None, identity.space):
            raise Problem(FORBIDDEN, "forbidden", "the token is for another space")
        wanted = identity.space
    elif wanted is None and len(runtime.spaces) == 1:
        wanted = next(iter(runtime.spaces))
    space = runtime.spaces.get(wanted or "")
    present = [] if space is None else space.owner.described(REFERENCE_DIALECT)
    return Json({"participants": [{**each, "connected": True} for each in present]})


def _is_local(runtime: GatewayRuntime, request: Request) -> bool:
    """True if the caller is on this machine, and not another's browser or proxy on it.

    A page in a browser can make its own name lead here, and names it in ``Host``.
    """
    asked = host_name(request.headers.get("host", ""))
    forwarded = is_forwarded(request.headers.keys())
    address = address_of_client(request.scope)  # of one that is forwarded, the caller's
    is_here = is_loopback(asked) and (not address or is_loopback(address))
    return runtime.local_http and is_here and not forwarded


# --- metrics ---

PREFIX: Final = "meup_"

_ABOUT: Final = {
    "frames_in": ("messages_received", "Messages that members sent."),
    "accepted": ("envelopes_accepted", "Envelopes of members that were accepted."),
    "delivered": ("frames_delivered", "Frames handed to members, the gateway's own included."),
    "dropped": ("envelopes_dropped", "Envelopes of kinds that no participant reads."),
    "repeated": ("envelopes_repeated", "Envelopes that had been accepted before."),
    "slowed": ("participants_slowed", "Times that a participant said more than is read at once."),
    "too_slow": ("queues_dropped", "Queues of readers that were too slow, by the limit's name."),
    "streams_refused": ("streams_refused", "Event streams beyond those a participant may have."),
    "stream_frames": ("stream_frames_accepted", "Frames of streams that were accepted."),
    "stream_frames_delivered": ("stream_frames_delivered", "Frames of streams handed to readers."),
    "stream_frames_lost": (
        "stream_frames_lost",
        "Frames of streams that slow readers lost.",
    ),
    "not_expressible": ("envelopes_not_expressible", "Envelopes that a dialect has no words for."),
    "joined": ("connections_joined", "Connections that joined a space."),
    "taken_over": ("connections_taken_over", "Connections that a newer one replaced."),
    "observed": ("connections_observed", "Connections that began to look on."),
    "left": ("participants_left", "Participants that left a space."),
    "refused": ("envelopes_refused", "Envelopes that were refused, by the error's code."),
    "closed": ("connections_closed", "Members that the gateway closed, by close code."),
    "not_admitted": ("connections_not_admitted", "Callers that did not get in, by status."),
}
"""The metric for each counter, and what it says."""


_OF_A_SPACE: Final[dict[str, tuple[str, Callable[[GatewayRuntime, SpaceServer], int]]]] = {
    "members": ("Members of a space.", lambda _, host: len(host.delivery.members)),
    "observers": (
        "Connections that look on a space, and are not members of it.",
        lambda _, host: host.delivery.observers,
    ),
    "streams": ("Open streams of a space.", lambda _, host: len(host.owner.streams)),
    "queued_bytes": (
        "Bytes that wait for slow readers of a space, observers included.",
        lambda runtime, host: runtime.backlogs.waiting_in(host.name),
    ),
    "journal_behind": (
        "Envelopes of a space that are on their way into the journal.",
        lambda _, host: max(0, host.journal.latest(host.name) - host.fanout.delivered),
    ),
}
"""The gauges of each space."""


class RuntimeCollector(Collector):
    """Reads the gateway's numbers when they are asked for."""

    def __init__(self, runtime: GatewayRuntime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """Every number at this moment; of several gateways, each says which it is."""
        node = self._runtime.node
        for family in self._families():
            if node:
                family.samples = [
                    sample._replace(labels={"node": node, **sample.labels})
                    for sample in family.samples
                ]
            yield family

    def _families(self) -> Iterator[Metric]:
        runtime = self._runtime
        counters = runtime.counters
        for field in fields(counters):
            value: object = getattr(counters, field.name)
            name, about = _ABOUT[field.name]
            if isinstance(value, Counter):
                family = CounterMetricFamily(PREFIX + name, about, labels=["code"])
                for code, count in sorted(cast("Counter[object]", value).items(), key=str):
                    family.add_metric([str(code)], count)
                yield family
            elif isinstance(value, int):
                yield CounterMetricFamily(PREFIX + name, about, value=value)
            else:
                raise AssertionError(f"{field.name}: a counter is an int or a Counter")
        yield GaugeMetricFamily(
            PREFIX + "connections",
            "Connections of members, those that have not joined yet included.",
            value=runtime.open_connections,
        )
        for name, (about, measure) in _OF_A_SPACE.items():
            gauge = GaugeMetricFamily(PREFIX + name, about, labels=["space"])
            for space, host in runtime.spaces.items():
                gauge.add_metric([space], measure(runtime, host))
            yield gauge
        yield GaugeMetricFamily(
            PREFIX + "backlog_bytes",
            "Bytes that wait for slow readers; what waits for several counts once.",
            value=runtime.backlogs.bytes,
        )


def export_to_sdk(runtime: GatewayRuntime) -> None:
    """Let an OpenTelemetry SDK read the same numbers."""
    from meup_agent.gateway.tracing import export_metrics  # which not everybody has installed

    export_metrics(RuntimeCollector(runtime))


async def get_alive(runtime: GatewayRuntime, request: Request) -> Response:
    """The process answers."""
    return Json({"status": "ok"})


async def get_ready(runtime: GatewayRuntime, request: Request) -> Response:
    """Members can join, and the journal keeps what they say."""
    if not runtime.accepting:
        raise Problem(UNAVAILABLE, "unavailable", "the gateway does not listen")
    journals = runtime.journals
    if problem := next((each.problem for each in journals if each.problem), ""):
        problem = f"the journal keeps nothing now: {problem}"
    elif not journals and runtime.config.spaces and not runtime.forwards:
        stopped = "; ".join(_stopped(runtime))
        problem = f"no space can be kept: {stopped}" if stopped else "no space is here now"
    if problem:
        after = {"Retry-After": str(RETRY_AFTER)}
        raise Problem(UNAVAILABLE, "unavailable", problem, headers=after, retry_after=RETRY_AFTER)

    def ask(tell: Callable[[None], None]) -> None:
        waiting = {id(each) for each in journals}

        def note_kept(journal: Journal) -> None:
            waiting.discard(id(journal))
            if not waiting:
                tell(None)

        for each in journals:
            each.call_when_kept(partial(note_kept, each))

    if journals:
        await await_callback(ask)
    answer: dict[str, Any] = {"status": "ok"}
    if runtime.stopped:
        answer["stopped"] = _stopped(runtime)
    return Json(answer)


def _stopped(runtime: GatewayRuntime) -> list[str]:
    return [f"space {quote(name)}: {why}" for name, why in sorted(runtime.stopped.items())]


async def get_metrics(runtime: GatewayRuntime, request: Request) -> Response:
    """Everything that is counted, in Prometheus' form."""
    accept = request.headers.get("accept", "")
    try:
        encode, media_type = choose_encoder(accept)
    except Exception:
        # The library fails in several ways at a version that is no number.
        encode, media_type = choose_encoder("")
    return Response(encode(RuntimeCollector(runtime)), media_type=media_type)


# --- the history of a space ---
# What was decided and what expired, from the journal's table of decisions.

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
        until=read_time(until, _UNTIL) if until else now,
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


_UNTIL: Final = "until must be a time (RFC 3339), with its zone"


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
    at = min(read_time(until, _UNTIL), host.now()) if until else host.now()
    host.journal.mark_seen(host.name, identity.participant, at)
    return Json({"unseen": await count_unseen(host, identity.participant)})

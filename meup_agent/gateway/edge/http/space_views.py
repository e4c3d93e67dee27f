"""The state of a space over HTTP: its members, the caller, and its proposals."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint
from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.edge.handshake import is_seq
from meup_agent.gateway.edge.http.context import (
    Json,
    authenticate,
    authorize_space,
    await_callback,
    bad_query,
    read_flag,
    read_journal,
)
from meup_agent.gateway.edge.http.messages import page_size
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.audit import Audit, proposal_as_json
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.space.journal import MAX_SEQ, Entry, FoldBegin
from meup_agent.protocol.space.server import SpaceServer
from meup_agent.protocol.timestamps import TRANSIT_SECONDS, rfc3339


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


class SpaceProposals:
    """The proposals of one space, which each reading brings up to date."""

    def __init__(self) -> None:
        self.audit = Audit(limit=MAX_FOLDED)
        self.gap = False
        self._lock = anyio.Lock()
        # The last number that was folded, or is not to be; none before the first reading.
        self._seen: int | None = None
        self._older = deque[Entry]()

    async def catch_up(self, host: SpaceServer, at: int) -> None:
        """Fold what was accepted since the last time, up to a time of the gateway's clock.

        Args:
            host: The space.
            at: The time, in microseconds since 1970.
        """
        floor = host.journal.floor(host.name)
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


_proposals_by_space: WeakKeyDictionary[SpaceServer, SpaceProposals] = WeakKeyDictionary()


def proposals_of(host: SpaceServer) -> SpaceProposals:
    """The proposals of a space, which all its readers share."""
    return _proposals_by_space.setdefault(host, SpaceProposals())


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
    proposals = proposals_of(host)
    await proposals.catch_up(host, host.now())
    audit = proposals.audit
    named = audit.proposals if wanted is None else audit.named(wanted)
    end = int(before) if before else math.inf
    found = [each for each in named if state in (None, each.state) and each.first.seq < end]
    page = found[-limit:]
    said = list[dict[str, Any]]()
    for each in page:
        # The time at which its proposer left, who may come back.
        pending = each.state.is_pending
        left = host.owner.left_after(each.proposer, each.first.at) if pending else None
        shown = proposal_as_json(each, timeline=timeline)
        said.append({**shown, "proposer_left": None if left is None else rfc3339(left)})
    older = page[0].first.seq if len(found) > limit else None
    return Json({"proposals": said, "before": older, "gap": proposals.gap})

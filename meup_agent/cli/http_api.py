"""A gateway's HTTP API: the token's participant, envelopes, and the proposal that is meant."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import quote, urlsplit

from meup_agent.cli import exit_codes
from meup_agent.cli.address import HttpAddress
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.formatting import format_call
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import Call, as_object, objects_in
from meup_agent.protocol.payloads import digest as digest_of_call
from meup_agent.protocol.timestamps import read_moment
from meup_agent.transport.handshake import (
    Advice,
    advice_for,
    reason_for,
    with_tls,
    without_tls,
)
from meup_agent.transport.http import ANSWER_SECONDS, fetch, open_client

if TYPE_CHECKING:
    import httpx

    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope

MAX_NAMED = 4  # proposals that an error names

CHECK_ADDRESS: Final = "check --http or MEUP_HTTP, or else --url or MEUP_URL"
"""Advice where no gateway answers: without an address of its own, HTTP is asked at the other's."""

MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of an answer; a page of messages has about 4 MiB, or a single larger one."""

MAX_PROPOSALS: Final = 500
"""Proposals that are asked for at a time: the most that a gateway gives."""


class HttpApi:
    """The HTTP API for one token; made by :func:`open_http_api`."""

    def __init__(self, client: httpx.AsyncClient, url: str, me: dict[str, Any]) -> None:
        self._client = client
        self._url = url
        self.me = str(me.get("id", ""))
        self.space = str(me.get("space", ""))

    async def proposals(self, proposal: str) -> list[dict[str, Any]]:
        """The proposals with an id, or the beginning of it, and what became of them."""
        path = f"/spaces/{quote(self.space, safe='')}/proposals"
        answer = await self._ask(path, id=proposal)
        return objects_in(answer.get("proposals"))

    async def recent(self, most: int, **query: str) -> list[dict[str, Any]]:
        """The latest proposals, so many at most, oldest first, by a query of ``/proposals``."""
        path = f"/spaces/{quote(self.space, safe='')}/proposals"
        found: list[dict[str, Any]] = []
        while len(found) < most:
            limit = min(most - len(found), MAX_PROPOSALS)
            answer = await self._ask(path, limit=str(limit), **query)
            page, before = objects_in(answer.get("proposals")), answer.get("before")
            found = [*page, *found]
            if not page or not isinstance(before, int) or str(before) == query.get("before"):
                break  # an older gateway has no pages
            query["before"] = str(before)
        return found

    async def envelope(self, seq: int) -> Envelope:
        """The envelope with a number."""
        # In a published dialect ``to`` of a proposal is its executor, not who decides (PROTOCOL 1).
        answer = await self.page(str(seq - 1), limit=1, dialect=DEFAULT_DIALECT)
        for message in objects_in(answer.get("messages")):
            if message.get("seq") == seq:
                return decode(json.dumps(message))
        raise Failure(f"the gateway does not know the envelope {seq} any more")

    async def page(self, since: str | None, *, limit: int, dialect: str) -> dict[str, Any]:
        """A page of what was said after a number or a time: ``messages``, ``times``, ``next``."""
        begin = {} if since is None else {"since": since}
        return await self._ask(self._messages, limit=str(limit), dialect=dialect, **begin)

    async def _ask(self, path: str, **query: str) -> dict[str, Any]:
        return await _ask(self._client, self._url, path, **query)

    @property
    def _messages(self) -> str:
        return f"/participants/{quote(self.me, safe='')}/messages"


@asynccontextmanager
async def open_http_api(where: HttpAddress) -> AsyncGenerator[HttpApi]:
    """The HTTP API, for the length of a block."""
    token = where.token if isinstance(where.token, str) else where.token()
    async with open_client(where.url, f"Bearer {token.strip()}") as client:
        api = HttpApi(client, where.url, await _ask(client, where.url, "/me"))
        if where.participant not in (None, api.me):
            raise Misuse(
                f"the token is {visible(api.me, 64)}'s, not {where.participant!r}'s;"
                " set MEUP_TOKEN to theirs"
            )
        if where.space not in (None, api.space):
            raise Misuse(
                f"the token is for the space {visible(api.space, 64)}, not {where.space!r};"
                " check --space or MEUP_SPACE"
            )
        yield api


async def _ask(client: httpx.AsyncClient, url: str, path: str, **query: str) -> dict[str, Any]:
    import httpx

    try:
        response = await fetch(client, "GET", path, params=query, max_bytes=MAX_PAGE_BYTES)
    except httpx.ConnectError as error:
        found = advice_for(error, urlsplit(url).scheme)
        found = found or Advice(reason_for(error, ANSWER_SECONDS), CHECK_ADDRESS)
        raise Failure(f"no gateway answers at {url}: {found}", exit_codes.NO_CONNECTION) from error
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        # Later on, the address has shown that it is right.
        scheme = urlsplit(url).scheme
        todo = without_tls(scheme) if scheme == "https" else with_tls(scheme)
        advice = f"; {CHECK_ADDRESS}: {todo}" if path == "/me" else ""
        said = f"the gateway did not answer ({why}){advice}"
        raise Failure(said, exit_codes.NO_CONNECTION) from error
    if response.status_code != 200:
        _refuse(response)
    try:
        return as_object(response.json())
    except (ValueError, RecursionError):
        raise _no_api(response) from None


def _refuse(response: httpx.Response) -> NoReturn:
    """Raise what an answer that is no success means."""
    try:
        body = as_object(response.json())
    except (ValueError, RecursionError):
        raise _no_api(response) from None
    code, message = body.get("error"), body.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        raise _no_api(response)
    said = visible(message, 300)
    if response.status_code == 401:
        advice = "check MEUP_TOKEN, --token-file or --token"
        raise Failure(f"the gateway refuses the token: {said}; {advice}", exit_codes.NO_CONNECTION)
    raise Failure(f"the gateway refused the request: {code} ({said})", exit_codes.NO_CONNECTION)


def _no_api(response: httpx.Response) -> Failure:
    return Failure(
        f"what answers at {response.request.url} is no gateway's HTTP API"
        f" (status {response.status_code}); {CHECK_ADDRESS}",
        exit_codes.NO_CONNECTION,
    )


# --- the proposal that is meant ---


async def pending_proposal(
    api: HttpApi,
    given: str,
    *,
    proposer: str | None = None,
    digest: str | None = None,
    in_progress: bool = False,
    whichever_call: bool = True,
) -> dict[str, Any]:
    """The pending proposal that an id, or the beginning of one, means.

    Where its proposer has used the id before for another call, the pending one is meant; without
    ``whichever_call``, as where something is approved, it is not. With ``in_progress`` its
    fulfillment may be on its way.
    """
    if not given.strip():
        raise Misuse("the proposal is empty; give its id")
    found = [
        each
        for each in await api.proposals(given)
        if (proposer is None or each.get("proposer") == proposer)
        and (digest is None or digest_of(each) == digest)
    ]
    if not found:
        whose = "proposal" if proposer is None else f"proposal of {visible(proposer, 64)}"
        raise Failure(f"the gateway knows no {whose} {given!r}; meup audit lists those it knows")
    exact = [each for each in found if each.get("id") == given] or found
    if len(exact) > 1:
        exact = _same(exact, whichever_call=whichever_call) or exact
    if len(exact) > 1:
        raise _several(given, exact)
    record = exact[0]
    by = record.get("in_progress_by")
    if not _is_pending(record):
        raise AlreadyDecided(str(record.get("id")), str(record.get("state")))
    if isinstance(by, str) and not in_progress:
        raise AlreadyInProgress(str(record.get("id")), by)
    return record


def note_proposer_left(space: Space, records: Iterable[Mapping[str, Any]]) -> None:
    """Note of which open proposals the gateway says that their proposers have left.

    Only what the space knows: an inbox, or a feed, has entered them before.
    """
    feed = ProposalFeed(space)
    for record in records:
        left = read_moment(record.get("proposer_left"))
        if left is not None:
            key = ProposalKey(str(record.get("proposer")), str(record.get("id")))
            feed.note_proposer_left(key, left)


def _same(found: list[dict[str, Any]], *, whichever_call: bool) -> list[dict[str, Any]]:
    """The one that is meant of those that one proposer made under one id; none if that is open."""
    keys = {(each.get("proposer"), each.get("id")) for each in found}
    pending = [each for each in found if _is_pending(each)]
    calls = {digest_of(each) for each in found}
    same_call = len(calls) == 1 and None not in calls
    return pending if len(keys) == len(pending) == 1 and (whichever_call or same_call) else []


def _is_pending(record: dict[str, Any]) -> bool:
    return record.get("state") in (ProposalState.PENDING, ProposalState.IN_PROGRESS)


def digest_of(record: dict[str, Any]) -> str | None:
    """The digest of a proposed call (PROTOCOL 6); ``None`` where it has none."""
    target = record.get("target")
    return digest_of_call(
        str(record.get("method")),
        as_object(record.get("params")),
        target if isinstance(target, str) else None,
    )


def _several(given: str, found: list[dict[str, Any]]) -> Failure:
    """The error for an ambiguous id; it names each proposal that has it."""
    proposers = {each.get("proposer") for each in found}
    if len({each.get("id") for each in found}) > 1:
        advice = "give more of the id"
    elif len(proposers) > 1:
        advice = "say with --proposer whose is meant"
    else:
        advice = "say with --digest which is meant; meup audit --json and meup tail --json tell"
    said = "; ".join(_in_words(each) for each in found[:MAX_NAMED])
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return Misuse(f"several proposals are meant by {given!r}: {said}{more}; {advice}")


def _in_words(record: dict[str, Any]) -> str:
    identity, proposer, state = (
        visible(str(record.get(key)), 64) for key in ("id", "proposer", "state")
    )
    params = as_object(record.get("params"))
    call = Call(str(record.get("method")), params)
    target = f"{visible(str(record['target']), 64)}." if record.get("target") else ""
    return f"{identity} of {proposer}, {target}{format_call(call)}, {state.replace('_', ' ')}"

"""The offers of a space: tools, resources, templates and prompts of its participants, by name.

The lists are those that :mod:`meup_agent.client.offer_lists` keeps; here they get the names by
which MCP clients know what is in them, until one of them changes, our capabilities do, or our
connection was lost.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.shared.inbound import x_mcp_header_map
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError

from meup_agent.client.offer_lists import (
    METHODS,
    PROMPTS,
    RESOURCES,
    RETRY_SECONDS,
    TEMPLATES,
    TOOLS,
)
from meup_agent.client.space import lists_of
from meup_agent.errors import MeupError, RequestError, RequestTimeout
from meup_agent.mcp.naming import (
    OwnName,
    Template,
    exposed_name,
    needs_wrapping,
    unwrap_uri,
    wrap_template,
    wrap_uri,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meup_agent.client.space import Space
    from meup_agent.protocol.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")

LIST_SECONDS: Final = 3.0
"""Wait for a participant's list; then it is left out, and asked for again after a while."""

MAX_OFFERS: Final = 2000
"""Of one kind, of one participant; the largest servers have some hundreds."""


class Ambiguous(Exception):
    """A URI that several participants list.

    Attributes:
        owners: The participants.
    """

    def __init__(self, owners: tuple[str, ...]) -> None:
        super().__init__(f"listed by {', '.join(owners)}")
        self.owners = owners


@dataclass(frozen=True)
class Offer:
    """A tool, prompt, resource or template of a participant.

    Attributes:
        participant: The participant.
        name: Its name, or URI, there.
        exposed: Its name, or URI, for MCP clients.
        described: Its description for MCP clients, as JSON values; not to be changed.
    """

    participant: str
    name: str
    exposed: str
    described: JsonObject

    @cached_property
    def repeats_arguments(self) -> bool:
        """True if its schema wants some arguments repeated as headers of the request."""
        return bool(x_mcp_header_map(self.described.get("inputSchema")))


@dataclass(slots=True)
class _CachedList:
    """A participant's list of one kind; ``retry_at``: the time from which it is asked for again."""

    items: list[JsonObject]
    retry_at: float | None = None


class Catalog:
    """The offers of the participants of a space that we may ask.

    Args:
        space: The space.
        changed: Called with the kinds that may have changed; returns at once.
        start_soon: Does some work beside.
        bare: One participant, whose names stay as they are.
    """

    def __init__(
        self,
        space: Space,
        changed: Callable[[tuple[str, ...]], None],
        start_soon: Callable[..., None],
        *,
        bare: str | None = None,
    ) -> None:
        self._space = space
        self._changed = changed
        self._start_soon = start_soon
        self._bare = bare
        self._lists: dict[tuple[str, str], _CachedList] = {}
        # Those that are on their way, until something changes: then they are asked for anew.
        self._asked: dict[tuple[str, str], anyio.Event] = {}
        self._offers: dict[str, dict[str, Offer]] = {}
        # As they were before something changed: a name stays its participant's for good.
        self._latest: dict[str, dict[str, Offer]] = {}
        self._shown: dict[tuple[str, str], list[JsonObject]] = {}
        self._epoch = 0

    # --- what changes it ---

    def invalidate(self, participant: str | None = None, of: tuple[str, ...] = ()) -> None:
        """Forget what is known of a participant, or of all, and tell that it may have changed."""
        of = of or tuple(METHODS)
        self._epoch += 1
        for known in (self._lists, self._asked):
            for key in [each for each in known if participant in (None, each[0])]:
                if key[1] in of:
                    del known[key]
        self._forget_derived(of)
        self._changed(of)

    def _forget_derived(self, of: tuple[str, ...]) -> None:
        for kind in of:
            self._offers.pop(kind, None)
        for key in [each for each in self._shown if each[0] in of]:
            del self._shown[key]

    # --- reading it ---

    async def described(self, kind: str, version: str) -> list[JsonObject]:
        """All offers of a kind, as a revision of MCP describes them; invalid ones are left out."""
        offers = await self.offers(kind)
        shown = self._shown.get((kind, version))
        if shown is None:
            shown = [each.described for each in offers.values() if _is_valid(kind, version, each)]
            self._shown[kind, version] = shown
        return shown

    async def offers(self, kind: str) -> dict[str, Offer]:
        """The offers of a kind, by their names or URIs for MCP clients."""
        stale = [each for each in self._participants() if not self._is_fresh(each, kind)]
        unknown = [each for each in stale if (each, kind) not in self._lists]
        if unknown:
            async with anyio.create_task_group() as tasks:
                for participant in unknown:
                    tasks.start_soon(self._fetch, participant, kind)
        for participant in stale:
            if participant not in unknown:
                # One that did not answer is asked again, and not waited for.
                self._start_soon(self._fetch, participant, kind)
        present = self._offers.get(kind)
        if present is None:
            present = self._offers[kind] = self._latest[kind] = self._build(kind)
        return present

    async def find(self, kind: str, exposed: str) -> Offer | None:
        """The tool or prompt with a name for MCP clients."""
        known = self._latest.get(kind, {}).get(exposed)
        if known is not None and self._is_fresh(known.participant, kind):
            return known  # whatever became of other participants meanwhile
        return (await self.offers(kind)).get(exposed)

    async def owner_of(self, uri: str) -> OwnName | None:
        """The participant that has a resource, and its URI there.

        Raises:
            Ambiguous: Several participants have it.
        """
        resources = await self.offers(RESOURCES)
        found = resources.get(uri)
        if found is not None:
            return OwnName(found.participant, found.name)
        templates = [
            Template(each.participant, each.name)
            for each in (await self.offers(TEMPLATES)).values()
        ]
        # The more of a template is fixed, the less it takes what is meant for another.
        templates.sort(key=lambda each: -each.literal_chars)
        if (wrapped := unwrap_uri(uri)) is not None:
            if wrapped.participant not in self._participants():
                return None
            for template in templates:
                if template.participant == wrapped.participant:
                    own = template.unwrap(uri)
                    if own is not None:
                        return OwnName(wrapped.participant, own)
            return wrapped
        owners = {each.participant for each in resources.values() if each.name == uri}
        owners = owners or {each.participant for each in templates if each.matches(uri)}
        if len(owners) > 1:
            raise Ambiguous(tuple(sorted(owners)))
        return OwnName(owners.pop(), uri) if owners else None

    async def template_of(self, exposed: str) -> Offer | None:
        """The template, or resource, with a URI for MCP clients."""
        found = (await self.offers(TEMPLATES)).get(exposed)
        return found or (await self.offers(RESOURCES)).get(exposed)

    def exposed_uris(self, participant: str, uri: str) -> tuple[str, ...]:
        """The URIs that MCP clients may have subscribed to for a participant's own URI."""
        return (uri, wrap_uri(participant, uri))

    # --- asking for it ---

    def _participants(self) -> list[str]:
        me = self._space.me
        return sorted(each.id for each in self._space.participants if each.id != me)

    def _is_fresh(self, participant: str, kind: str) -> bool:
        known = self._lists.get((participant, kind))
        if known is None:
            return False
        return known.retry_at is None or anyio.current_time() < known.retry_at

    async def _fetch(self, participant: str, kind: str) -> None:
        """Ask a participant for a list, once for all that wait for it at a time.

        They all end with the answer that they found, or with its absence: by deadlines of their
        own, which differ a little, each would ask a silent participant once more.
        """
        key = participant, kind
        while (asked := self._asked.get(key)) is not None:
            await asked.wait()
            if key in self._lists:
                return  # else the one that asked has gone
        asked = self._asked[key] = anyio.Event()
        try:
            await self._refresh(participant, kind)
        finally:
            if self._asked.get(key) is asked:
                del self._asked[key]
            asked.set()

    async def _refresh(self, participant: str, kind: str) -> None:
        epoch, retry_at = self._epoch, None
        items: list[JsonObject] = []
        failure = ""
        try:
            items = await self._ask(participant, kind)
        except RequestError:
            pass  # it has none of these
        except RequestTimeout:
            failure = f"{participant!r} does not answer {METHODS[kind]}"
        except MeupError as error:
            failure = f"{METHODS[kind]} of {participant!r} could not be had: {error}"
        if self._is_fresh(participant, kind):
            return  # one that was asked for after a change came first
        if failure:
            retry_at = anyio.current_time() + RETRY_SECONDS
            log.info("%s", failure)
        before = self._lists.get((participant, kind))
        if epoch != self._epoch and before is None:
            # It may have changed on its way: good for who waits for it, and asked for again.
            retry_at = anyio.current_time()
        self._lists[participant, kind] = _CachedList(items, retry_at)
        if before is None:
            self._forget_derived((kind,))
        elif before.items != items:
            self._forget_derived((kind,))
            self._changed((kind,))

    async def _ask(self, participant: str, kind: str) -> list[JsonObject]:
        """A list, from what the space's participant knows; none where we may not ask."""
        if not self._space.may_request(participant, METHODS[kind], {}):
            return []
        items = await lists_of(self._space).get(participant, kind=kind, timeout=LIST_SECONDS)
        if len(items) > MAX_OFFERS:
            log.warning("the %s of %r are too many, and were cut", kind, participant)
        return items[:MAX_OFFERS]

    # --- names ---

    def _build(self, kind: str) -> dict[str, Offer]:
        present = set(self._participants())
        lists = {
            participant: known.items
            for (participant, of), known in sorted(self._lists.items())
            if of == kind and participant in present
        }
        named = _named if kind in (TOOLS, PROMPTS) else _located
        offers: dict[str, Offer] = {}
        for offer in named(kind, lists, self._bare):
            if offer.exposed in offers:
                log.error("%r lists %r twice; the first one counts", offer.participant, offer.name)
            else:
                offers[offer.exposed] = offer
        return offers


def _named(kind: str, lists: dict[str, list[JsonObject]], bare: str | None) -> Iterator[Offer]:
    """Tools or prompts, by names that say their participants."""
    for participant, items in lists.items():
        for item in items:
            own = item.get("name")
            if not isinstance(own, str) or not own:
                log.error("%r lists an offer without a name among its %s", participant, kind)
                continue
            exposed = own if participant == bare else exposed_name(participant, own)
            yield Offer(participant, own, exposed, {**item, "name": exposed})


def _located(kind: str, lists: dict[str, list[JsonObject]], bare: str | None) -> Iterator[Offer]:
    """Resources or templates, by URIs that say their participants where they must."""
    field, wrap = ("uri", wrap_uri) if kind == RESOURCES else ("uriTemplate", wrap_template)
    owners: dict[str, set[str]] = {}
    for participant, items in lists.items():
        for item in items:
            if isinstance(own := item.get(field), str) and own:
                owners.setdefault(own, set()).add(participant)
            else:
                log.error("%r lists an offer without a URI among its %s", participant, kind)
    for participant, items in lists.items():
        for item in items:
            own = item.get(field)
            if not isinstance(own, str) or not own:
                continue
            shared = len(owners[own]) > 1 or needs_wrapping(own)
            exposed = wrap(participant, own) if shared and participant != bare else own
            yield Offer(participant, own, exposed, {**item, field: exposed})


def _is_valid(kind: str, version: str, offer: Offer) -> bool:
    """True if a revision of MCP can express an offer; one that it cannot spoils its list."""
    try:
        serialize_server_result(METHODS[kind], version, _result_of(kind, [offer.described]))
    except (ValidationError, RecursionError) as error:
        why = error.errors()[0] if isinstance(error, ValidationError) else {"msg": "too deep"}
        where = ".".join(map(str, why.get("loc", ())[2:])) or kind
        log.error(
            "%r of %r is left out, it is not valid in MCP %s: %s: %s",
            offer.name,
            offer.participant,
            version,
            where,
            why["msg"],
        )
        return False
    return True


def _result_of(kind: str, items: list[Any]) -> JsonObject:
    return {kind: items, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

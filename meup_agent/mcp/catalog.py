"""The offers of a space: tools, resources, templates and prompts of its participants, by name.

The lists are those that :mod:`meup_agent.client.offer_directory` keeps; here they get the names by
which MCP clients know what is in them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from mcp.shared.inbound import x_mcp_header_map
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError

from meup_agent.client.offer_directory import (
    METHODS,
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
)
from meup_agent.client.space import directory_of
from meup_agent.errors import MeupError
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


class _Built(NamedTuple):
    """The offers of a kind, and of which lists they were made."""

    revision: int
    participants: list[str]
    offers: dict[str, Offer]


class Catalog:
    """The offers of the participants of a space that we may ask.

    Args:
        space: The space.
        changed: Called with the kinds of a list that came late; returns at once.
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
        self._directory = directory_of(space)
        # A name stays its participant's also while another list is on its way.
        self._built: dict[str, _Built] = {}
        self._shown: dict[tuple[str, str], tuple[dict[str, Offer], list[JsonObject]]] = {}
        self._retried = set[tuple[str, str]]()

    # --- reading it ---

    async def described(self, kind: str, version: str) -> list[JsonObject]:
        """All offers of a kind, as a revision of MCP describes them; invalid ones are left out."""
        offers = await self.offers(kind)
        made_of, shown = self._shown.get((kind, version), ({}, []))
        if made_of is not offers:
            shown = [each.described for each in offers.values() if _is_valid(kind, version, each)]
            self._shown[kind, version] = offers, shown
        return shown

    async def offers(self, kind: str) -> dict[str, Offer]:
        """The offers of a kind, by their names or URIs for MCP clients."""
        lists: dict[str, list[JsonObject]] = {}
        async with anyio.create_task_group() as tasks:
            for participant in self._askable(kind):
                if self._directory.peek(participant, kind) is not None:
                    continue
                if self._directory.has_failed(participant, kind):
                    # One that did not answer is asked again, and not waited for.
                    if (participant, kind) not in self._retried:
                        self._retried.add((participant, kind))
                        self._start_soon(self._retry, participant, kind)
                else:
                    tasks.start_soon(self._read, participant, kind, lists)
        participants, revision = self._askable(kind), self._directory.revision
        built = self._built.get(kind)
        if built is None or lists or built[:2] != (revision, participants):
            for participant in participants:
                if (kept := self._directory.peek(participant, kind)) is not None:
                    lists[participant] = kept[:MAX_OFFERS]
            built = _Built(revision, participants, self._build(kind, lists))
            self._built[kind] = built
        return built.offers

    async def find(self, kind: str, exposed: str) -> Offer | None:
        """The tool or prompt with a name for MCP clients."""
        built = self._built.get(kind)
        known = None if built is None else built.offers.get(exposed)
        if (
            known is not None
            and self._may_ask(known.participant, kind)
            and self._directory.peek(known.participant, kind) is not None
        ):
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

    def _askable(self, kind: str) -> list[str]:
        """The participants that we may ask for their lists."""
        return [each for each in self._participants() if self._may_ask(each, kind)]

    def _may_ask(self, participant: str, kind: str) -> bool:
        return self._space.may_request(participant, METHODS[kind], {})

    async def _read(
        self, participant: str, kind: str, lists: dict[str, list[JsonObject]]
    ) -> list[JsonObject] | None:
        """Read a list of a participant; one that has changed on its way is good for this once."""
        try:
            items = await self._directory.read(participant, kind, LIST_SECONDS)
        except MeupError as error:
            log.info("%s of %r could not be had: %s", METHODS[kind], participant, error)
            return None
        if items is not None:
            if len(items) > MAX_OFFERS:
                log.warning("the %s of %r are too many, and were cut", kind, participant)
            lists[participant] = items[:MAX_OFFERS]
        return items

    async def _retry(self, participant: str, kind: str) -> None:
        try:
            if await self._read(participant, kind, {}):
                self._changed((kind,))
        finally:
            self._retried.discard((participant, kind))

    # --- names ---

    def _build(self, kind: str, lists: dict[str, list[JsonObject]]) -> dict[str, Offer]:
        named = _named if kind in (TOOLS, PROMPTS) else _located
        offers: dict[str, Offer] = {}
        for offer in named(kind, dict(sorted(lists.items())), self._bare):
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

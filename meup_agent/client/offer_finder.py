"""The owner of a tool, prompt or resource, found by its name alone and pinned.

Names are claimed by whichever participant likes, so a name that once had a single owner stays this
owner's: what others claim later takes nothing over, and where the owner itself has it no more, the
caller is told instead of served by another.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meup_agent.client.ask_each import ask_each
from meup_agent.client.offer_directory import (
    METHODS,
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
    name_field,
)
from meup_agent.client.uri_templates import matches_any
from meup_agent.errors import (
    OwnerChanged,
    OwnerUnknown,
    UsageError,
    printable,
)
from meup_agent.protocol import kinds, payloads

if TYPE_CHECKING:
    from meup_agent.client.offer_directory import OfferDirectory
    from meup_agent.protocol.payloads import JsonObject
    from meup_agent.session import Session

log = logging.getLogger("meup_agent.client")

FIND_SECONDS: Final = 5.0
"""Wait for a participant's list; then it is left out, and asked again after a while."""

MAX_ASKED: Final = 256
"""Participants that are asked, those that came first: as many lists as are kept."""

MAX_AT_A_TIME: Final = 16
"""Of these, asked at the same time."""

MAX_PINNED: Final = 10_000
"""Names that have an owner in a space. None is forgotten, since a forgotten one could be taken."""

_WORDS: Final = {
    TOOLS: "tool",
    PROMPTS: "prompt",
    RESOURCES: "resource",
    TEMPLATES: "resource template",
}

_ROUTES: Final = {
    payloads.TOOL_CALL: TOOLS,
    "prompts/get": PROMPTS,
    "resources/read": RESOURCES,
    "resources/subscribe": RESOURCES,
    "resources/unsubscribe": RESOURCES,
}
"""Methods that name what they are for in their parameters, and the list that has it."""

_REFERENCES: Final = {"ref/prompt": (PROMPTS, "name"), "ref/resource": (TEMPLATES, "uri")}
"""References of a completion, and the key of what they name: a template, or the URI itself."""


class FoundTool(msgspec.Struct, frozen=True):
    """A tool of a participant, found by its name.

    Attributes:
        participant: The participant that has it.
        name: Its name.
        described: Its description as MCP has it (``name``, ``inputSchema`` …): a stranger's words.
    """

    participant: str
    name: str
    described: dict[str, Any] = {}


class _FoundOffer(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{_WORDS[self.kind]} {printable(self.name[:64])!r}"


class OfferFinder:
    """Finds the owners of what is named, by the lists of all participants."""

    def __init__(self, session: Session, lists: OfferDirectory) -> None:
        self._session = session
        self.lists: Final = lists
        """The lists of the participants."""
        self._owners: dict[_FoundOffer, str] = {}

    async def find(self, tool: str, timeout: float, *, renew: bool) -> list[FoundTool]:
        """The tools of a name; see :meth:`meup_agent.Space.find`."""
        offer = _FoundOffer(TOOLS, tool)
        owners = await self._owners_of(offer, timeout)
        if renew:
            self._owners.pop(offer, None)
        if len(owners) == 1:
            self._pin(offer, owners[0])
        return [
            FoundTool(owner, tool, self.lists.described(owner, TOOLS, tool)) for owner in owners
        ]

    async def owner(self, kind: str, name: str, timeout: float | None) -> str:
        """The one participant that has what is named, the same as before."""
        offer = _FoundOffer(kind, name)
        limit = FIND_SECONDS if timeout is None else min(timeout, FIND_SECONDS)
        pinned = self._owners.get(offer)
        present = pinned is not None and pinned in self._session.table.roster
        if pinned is not None and present and await self._has(pinned, offer, limit) is not False:
            return pinned
        owners = await self._owners_of(offer, limit)
        if pinned is not None:
            if pinned in owners or not (present or owners):
                return pinned  # away, it may come back: the call waits for it as any other does
            raise OwnerChanged(str(offer), pinned, owners)
        if len(owners) != 1:
            raise OwnerUnknown(str(offer), owners)
        self._pin(offer, owners[0])
        return owners[0]

    async def executor(self, tool: str, proposer: str, timeout: float | None) -> str:
        """The one participant besides a proposer that has the tool of its proposal."""
        offer = _FoundOffer(TOOLS, tool)
        if self._owners.get(offer) not in (None, proposer):
            return await self.owner(TOOLS, tool, timeout)
        limit = FIND_SECONDS if timeout is None else min(timeout, FIND_SECONDS)
        owners = [each for each in await self._owners_of(offer, limit) if each != proposer]
        if len(owners) != 1:
            raise OwnerUnknown(str(offer), owners)
        self._pin(offer, owners[0])
        return owners[0]

    async def route(self, method: str, params: JsonObject, timeout: float | None) -> str:
        """The one participant that has what a request is for."""
        kind, name = _ROUTES.get(method), None
        if kind is not None:
            name = params.get(name_field(kind))
        elif method == "completion/complete":
            ref = payloads.as_object(params.get("ref"))
            kind, field = _REFERENCES.get(str(ref.get("type")), (None, ""))
            name = ref.get(field)
            if kind == TEMPLATES and "{" not in str(name):
                kind = RESOURCES
        if kind is None or not isinstance(name, str):
            raise UsageError(
                f"{method} with these parameters names nothing that one participant has; "
                "say which participant it is for"
            )
        return await self.owner(kind, name, timeout)

    def _pin(self, offer: _FoundOffer, owner: str) -> None:
        if offer not in self._owners and len(self._owners) >= MAX_PINNED:
            raise UsageError(
                f"the owners of {MAX_PINNED} names are known here, and no more are kept; "
                "say which participant it is for"
            )
        self._owners.setdefault(offer, owner)

    async def _owners_of(self, offer: _FoundOffer, timeout: float) -> list[str]:
        """All who list what is named, those that came first first."""
        roster = self._session.table.roster
        asking = payloads.request(METHODS[offer.kind], {}, "")
        asked = [
            each.id
            for each in roster.participants()
            if each.id != roster.me
            and roster.is_allowed(roster.me, kinds.MCP_REQUEST, asking, (each.id,))
        ]
        if len(asked) > MAX_ASKED:
            log.warning("%s: %d participants are not asked", offer, len(asked) - MAX_ASKED)
        asked = asked[:MAX_ASKED]

        async def ask(participant: str) -> bool | None:
            return await self._has(participant, offer, timeout)

        has = await ask_each(asked, ask, at_a_time=MAX_AT_A_TIME)
        return [each for each, it_has in zip(asked, has, strict=True) if it_has]

    async def _has(self, participant: str, offer: _FoundOffer, timeout: float) -> bool | None:
        """True if a participant offers what is named; ``None`` if it does not say.

        A resource is offered by its URI and by a template of it alike: were a listed URI preferred,
        any participant could list one and be read in place of the template's owner.
        """
        deadline = self._session.now() + timeout
        names = await self.lists.names(participant, offer.kind, timeout)
        if names is not None and offer.name in names:
            return True
        if offer.kind == RESOURCES:
            left = max(deadline - self._session.now(), 0.0)
            templates = await self.lists.names(participant, TEMPLATES, left)
            if templates is not None and matches_any(templates, offer.name):
                return True
            names = None if templates is None else names
        return None if names is None else False

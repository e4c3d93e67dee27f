"""Verbs for the tools, resources and prompts that others offer (MCP 2025-11-25)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

from meup_agent.client.offer_directory import PROMPTS, RESOURCES, TEMPLATES
from meup_agent.client.offer_finder import FIND_SECONDS
from meup_agent.client.requests import TIMEOUT
from meup_agent.client.running_handler import awaited
from meup_agent.protocol import payloads

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from meup_agent.client.offer_directory import OfferDirectory
    from meup_agent.client.offer_finder import FoundTool, OfferFinder
    from meup_agent.protocol.payloads import JsonObject


class ResourceVerbs(ABC):
    """Requests for lists, resources and prompts; :class:`meup_agent.Space` has them."""

    _directory: OfferDirectory
    _finder: OfferFinder

    @abstractmethod
    def request(
        self,
        to: str | None,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> Coroutine[Any, Any, Any]:
        """Send an MCP request."""
        ...

    @awaited
    async def tools(
        self, participant: str, *, refresh: bool = False, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The tools that a participant has, as MCP describes them (``name``, ``inputSchema`` …).

        A list is kept, and given again without asking, until its participant says that it changed,
        leaves, or joins anew, or our own connection is lost. While it is kept, calls and proposals
        are checked by it before they are sent. Callers that ask at the same time share one request.

        Args:
            participant: The participant that has them.
            refresh: Ask in any case.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            RequestError: It was answered with an error.
            MeupError: As :meth:`request`.
        """
        return await self._directory.get(participant, timeout=timeout, refresh=refresh)

    @awaited
    async def find(
        self, tool: str, *, renew: bool = False, timeout: float = FIND_SECONDS
    ) -> list[FoundTool]:
        """The participants that have a tool of a name, those that came first first.

        Every present participant that we may ask is asked for its list, which is kept until it
        changes; one that does not answer is left out, and asked again half a minute later.

        Names are claimed by whichever participant likes. So the participant that alone has a name
        when it is first looked for, here or by :meth:`call` and :meth:`request` without a
        participant, is its owner from then on: they go to no other, and raise
        :exc:`OwnerChanged` once others have the tool and the owner has not.

        Args:
            tool: The tool's name.
            renew: Forget the owner; the participant that alone has it now becomes its owner.
            timeout: Seconds to wait for each participant's list.

        Raises:
            ConnectionFailed: Our own connection has failed.
        """
        return await self._finder.find(tool, timeout, renew=renew)

    @awaited
    async def resources(
        self, participant: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The resources that a participant has, as MCP describes them (``uri``, ``name`` …).

        Args:
            participant: The participant that has them.
            timeout: Seconds to wait for all of the list; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`request`.
        """
        return await self._directory.get(participant, kind=RESOURCES, timeout=timeout, refresh=True)

    @awaited
    async def resource_templates(
        self, participant: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The templates of resources that a participant has (``uriTemplate``, ``name`` …).

        Args:
            participant: The participant that has them.
            timeout: Seconds to wait for all of the list; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`request`.
        """
        return await self._directory.get(participant, kind=TEMPLATES, timeout=timeout, refresh=True)

    @awaited
    async def read_resource(
        self, participant: str | None, uri: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The contents of a resource: objects with ``uri`` and ``text`` or ``blob`` (base64).

        Args:
            participant: The participant that has it; ``None``: the only one (:meth:`Space.find`).
            uri: Its URI.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`request`.
        """
        result = await self.request(participant, "resources/read", {"uri": uri}, timeout=timeout)
        return _contents(uri, payloads.as_object(result))

    @awaited
    async def prompts(
        self, participant: str, *, timeout: float | None = TIMEOUT
    ) -> list[dict[str, Any]]:
        """The prompts that a participant has, as MCP describes them (``name``, ``arguments`` …).

        Args:
            participant: The participant that has them.
            timeout: Seconds to wait for all of the list; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`request`.
        """
        return await self._directory.get(participant, kind=PROMPTS, timeout=timeout, refresh=True)

    @awaited
    async def prompt(
        self,
        participant: str | None,
        name: str,
        arguments: dict[str, str] | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> dict[str, Any]:
        """A prompt with its arguments filled in: an object with ``messages``.

        Args:
            participant: The participant that has it; ``None``: the only one (:meth:`Space.find`).
            name: Its name.
            arguments: Its arguments.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`request`.
        """
        params = {"name": name, "arguments": arguments or {}}
        result = await self.request(participant, "prompts/get", params, timeout=timeout)
        return payloads.as_object(result)

    @awaited
    async def complete(
        self,
        participant: str | None,
        ref: dict[str, str],
        argument: str,
        value: str,
        *,
        known: dict[str, str] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> list[str]:
        """Values that would complete an argument of a prompt, or of a template of resources.

        Args:
            participant: The participant that has it; ``None``: the only one (:meth:`Space.find`).
            ref: ``{"type": "ref/prompt", "name": …}`` or ``{"type": "ref/resource", "uri": …}``.
            argument: The argument's name.
            value: Its beginning.
            known: The other arguments, as far as they are known.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            MeupError: As :meth:`request`.
        """
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if known:
            params["context"] = {"arguments": known}
        result = await self.request(participant, "completion/complete", params, timeout=timeout)
        values = payloads.as_object(payloads.as_object(result).get("completion")).get("values")
        given = payloads.as_list(values)
        return [each for each in given if isinstance(each, str)]


def _contents(uri: str, result: JsonObject) -> list[JsonObject]:
    """The contents of a resource; what existing participants give without a list is one text."""
    contents = result.get("contents")
    if contents is None or isinstance(contents, list):
        return payloads.objects_in(result.get("contents"))
    one: JsonObject = {"uri": uri}
    if isinstance(result.get("mimeType"), str):
        one["mimeType"] = result["mimeType"]
    if isinstance(contents, dict) and ("text" in contents or "blob" in contents):
        return [{**one, **cast("JsonObject", contents)}]
    one["text"] = contents if isinstance(contents, str) else json.dumps(result["contents"])
    return [one]

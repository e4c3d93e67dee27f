"""Checks of a journal on NATS: servers, permissions, streams, and the gateways that share it.

Nothing is changed: what tries a permission is a message that the server refuses, or that nobody
takes for anything, once it has let it through.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from meup_agent.cli.doctor import MAX_SAID, NOT_TRIED, Check, failed_check
from meup_agent.cli.render.formatting import name_some
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible
from meup_agent.gateway.cluster.membership import (
    HEARTBEAT_SECONDS,
    MAX_NODES,
    config_parts,
    differing_parts,
)
from meup_agent.gateway.cluster.placement import NodeHeartbeat, owner_of
from meup_agent.gateway.cluster.signing import Signer
from meup_agent.gateway.config_file import load_config
from meup_agent.gateway.limits import check_message_size
from meup_agent.gateway.network import fit_open_files

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.journal.nats.link import Link

HEAR_SECONDS: Final = 4 * HEARTBEAT_SECONDS
"""Time for each gateway that is there to say so."""

PUBLISHED: Final = (
    "{prefix}.log.>",
    "{prefix}.beat",
    "{prefix}.hello",
    "{prefix}.ask.*",
    "$KV.{prefix}-facts.>",
    "$KV.{prefix}-sessions.>",
    "$KV.{prefix}-links.>",
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.CREATE.*",
    "$JS.API.STREAM.UPDATE.*",
    "$JS.API.DIRECT.GET.>",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.CONSUMER.CREATE.*",
    "$JS.FC.>",
    "$JS.API.STREAM.PURGE.KV_{prefix}-sessions",
    "$JS.API.STREAM.PURGE.KV_{prefix}-links",
)
"""The subjects to which a gateway has to be let publish."""

SUBSCRIBED: Final = ("{prefix}.beat", "{prefix}.hello", "{prefix}.ask.*")
"""The subjects to which a gateway has to be let subscribe, beside those of answers."""

_REFUSED: Final = {"Nats-Expected-Stream": "meup-doctor"}
"""Headers with which each stream refuses a message: none has that name."""

_PURGE_NOTHING: Final = b'{"seq":1,"keep":9007199254740991}'
"""A purge that the server refuses, since it has both, and which would take nothing by either. One
that is no JSON takes everything."""


def examine_journal(file: Path, begin: Callable[[str], None]) -> Iterator[Check]:
    """The checks of the journal of a space's file, as they are done; blocks.

    Args:
        file: The file of a gateway.
        begin: Called with what is waited for.

    Raises:
        ConfigurationError: The file cannot be read, or its journal is on no server.
    """
    config = fit_open_files(load_config(file))
    if config.journal.postgres is not None:
        from meup_agent.cli.cluster.postgres_examination import examine_postgres

        yield from examine_postgres(config, begin)
        return
    if config.journal.nats is None:
        raise ConfigurationError(
            f"{file}: the journal is on no server; there is no journal.nats or journal.postgres"
        )
    from meup_agent.gateway.journal.nats.journal import max_frame_bytes
    from meup_agent.gateway.journal.nats.link import Link

    link = Link(config.journal.nats)
    begin("NATS")
    try:
        link.open()
    except ConfigurationError as error:
        yield failed_check("servers", error)
        for name in ("permissions", "jetstream", "streams", "gateways", "spaces"):
            yield Check(name, None, NOT_TRIED)
        return
    try:
        try:
            check_message_size(max_frame_bytes(link), config.limits.max_message_bytes)
            yield Check("servers", True, f"{link.place}, version {link.server['version']}")
        except ConfigurationError as error:
            yield failed_check("servers", error)
        yield from _Journal(config, link, begin).checks()
    finally:
        link.close()


class _Journal:
    """The checks of a journal whose servers can be reached."""

    def __init__(self, config: Config, link: Link, begin: Callable[[str], None]) -> None:
        nats = config.journal.nats
        assert nats is not None, "it was asked before"
        self._config = config
        self._nats = nats
        self._link = link
        self._begin = begin

    def checks(self) -> Iterator[Check]:
        self._begin("what this user may do")
        refused = self._link.wait(self._try_permissions())
        if refused:
            said = f"this user may not {name_some(refused, 4)}"
            advice = "give it what the how-to 'Keep the journal on NATS' lists"
            yield Check("permissions", False, visible(said, MAX_SAID), advice)
        else:
            yield Check("permissions", True, "all that a gateway needs")
        self._begin("JetStream")
        try:
            self._link.wait(self._link.find_jetstream())
            yield self._durability()
            yield from self._streams()
        except ConfigurationError as error:
            yield failed_check("jetstream", error)
        self._begin("other gateways")
        yield from self._gateways(self._link.wait(self._hear()))

    def _durability(self) -> Check:
        copies, said, advice = self._nats.replicas, "one server keeps each message", ""
        if copies > 1:
            said = f"{copies} servers are to keep each message"
        elif self._nats.monitoring is not None:
            said += ", on its disk before it says so"
        else:
            advice = (
                "whether a power cut takes what was accepted (sync_interval: always) is not seen"
                " from here: give its monitoring port (journal.nats.monitoring)"
            )
        return Check("jetstream", True, f"it answers; {said}", advice)

    # --- permissions ----------------------------------------------------------------------------

    async def _try_permissions(self) -> list[str]:
        """The subjects to which this user may not publish or subscribe, with the verb."""
        client: Any = self._link.client
        refused: list[str] = []
        for subject in (each.format(prefix=self._nats.prefix) for each in PUBLISHED):
            # No JSON, and no message of a gateway: it is let through, and does nothing.
            tried = subject.replace(">", "meup-doctor").replace("*", "meup-doctor")
            body = _PURGE_NOTHING if ".PURGE." in tried else b"?"
            if await self._is_refused(client.publish(tried, body, headers=_REFUSED)):
                refused.append(f"publish to {subject}")
        subscribed = [each.format(prefix=self._nats.prefix) for each in SUBSCRIBED]
        return refused + [
            f"subscribe to {subject}"
            for subject in subscribed
            if await self._is_refused(client.subscribe(subject))
        ]

    async def _is_refused(self, work: Coroutine[Any, Any, Any]) -> bool:
        self._link.last_error = ""
        done = await work
        for _ in range(2):  # the library's question may overtake what it sent just before
            await self._link.client.flush()
        if done is not None and not self._link.last_error:
            await done.unsubscribe()
        return "permissions violation" in self._link.last_error.lower()

    # --- streams --------------------------------------------------------------------------------

    def _streams(self) -> Iterator[Check]:
        from meup_agent.gateway.journal.nats.log import SpaceLog

        spaces = self._config.spaces
        made, changed, away = 0, list[str](), list[str]()
        for space in spaces:
            self._begin(f"the stream of space {space.id}")
            log = SpaceLog(self._link, self._nats, space.id)
            try:
                found = self._link.insist(partial(log.examine, self._config.journal))
                if found is None:
                    continue
                made += 1
                log.refuse_copy()
            except ConfigurationError as error:
                yield failed_check("streams", error)
                continue
            differing, copies = found
            changed += [f"{key} of {log.stream}" for key in differing]
            away += [f"{each} of {log.stream}" for each in copies]
        said = f"{made} of {len(spaces)} spaces have one"
        missing = "" if made == len(spaces) else "; the others are made when they begin"
        if changed:
            differs = f"{said}{missing}; not as configured: {name_some(changed, 4)}"
            advice = "a gateway sets that when it begins such a space"
            yield Check("streams", True, visible(differs, MAX_SAID), advice)
        elif made or missing:
            yield Check("streams", True, f"{said}{missing}")
        if away:
            said = f"not up to date: {name_some(away, 4)}"
            advice = "look at those servers; with more than half of them away nothing is accepted"
            yield Check("copies", False, visible(said, MAX_SAID), advice)
        elif made and self._nats.replicas > 1:
            yield Check("copies", True, "all are up to date")

    # --- gateways -------------------------------------------------------------------------------

    async def _hear(self) -> dict[str, tuple[NodeHeartbeat, dict[str, str]]]:
        """The gateways that are there, and the parts of their configurations, by nonce."""
        beats: dict[str, NodeHeartbeat] = {}
        reader = Signer(self._nats.known_token)

        async def hear(message: Any) -> None:
            with suppress(msgspec.MsgspecError):  # a stranger's
                # Also of one with another token, whose configuration is compared below.
                beat = msgspec.msgpack.decode(reader.read(message.data).body, type=NodeHeartbeat)
                if len(beats) < MAX_NODES:
                    beats[beat.nonce] = beat

        prefix = self._nats.prefix
        subscription = await self._link.subscribe(f"{prefix}.beat", hear)
        await anyio.sleep(HEAR_SECONDS)
        await subscription.unsubscribe()
        found: dict[str, tuple[NodeHeartbeat, dict[str, str]]] = {}
        for nonce, beat in beats.items():
            said = await self._link.request(f"{prefix}.ask.{nonce}", b"", HEAR_SECONDS)
            with suppress(msgspec.MsgspecError):  # it has gone, or hangs
                parts = reader.read(said or b"").body
                found[nonce] = beat, msgspec.msgpack.decode(parts, type=dict[str, str])
        return found

    def _gateways(self, found: dict[str, tuple[NodeHeartbeat, dict[str, str]]]) -> Iterator[Check]:
        if not found:
            yield Check("gateways", None, "none runs")
            return
        own = config_parts(self._config)
        beats = [beat for beat, _ in found.values()]
        for beat, theirs in sorted(found.values(), key=lambda each: each[0].node):
            names = sorted(space for space in beat.spaces if owner_of(space, beats) is beat)
            at = f" at {beat.advertise}" if beat.advertise else ""
            said = f"{beat.node}{at} owns {_listed(names)}"
            differing = differing_parts(own, theirs)
            if differing:
                said += f"; it has other {name_some(differing, 4)} than this file"
            missing = sorted(each for each in own.keys() - theirs if each.startswith("spaces."))
            if missing:
                said += f"; it does not have {name_some(missing, 4)}"
            advice = ""
            if differing:
                advice = (
                    "give all the same file; they read participants again by `meup gateway reload`"
                )
            elif [each.node for each in beats].count(beat.node) > 1:
                said += "; another one has its name"
                advice = "give each a name of its own (journal.nats.node): spaces are shared by it"
            yield Check("gateway", not differing, visible(said, MAX_SAID), advice)
        lost = [each.id for each in self._config.spaces if owner_of(each.id, beats) is None]
        if lost:
            advice = "the logs of the gateways, and their /readyz, say why"
            yield Check("spaces", False, visible(f"nobody has {_listed(lost)}", MAX_SAID), advice)
        else:
            yield Check("spaces", True, "each has an owner")


def _listed(spaces: list[str]) -> str:
    return name_some(spaces, 8) if spaces else "no space"

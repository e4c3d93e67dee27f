"""The task that sends notices: it looks at what waits whenever that has changed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.config import Config, NotifyTarget
from meup_agent.gateway.logs import log
from meup_agent.gateway.reach.bursts import BurstTracker
from meup_agent.gateway.reach.services import (
    PUSH,
    NotDelivered,
    NotifyService,
    PushService,
    PushSubscriptions,
    check_extra,
    make_service,
    new_secret,
)
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.link import FrameFormat, UnqueuedSubscriber
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.space.state.inflight import TRACKED_KINDS
from meup_agent.protocol.wire import kinds
from meup_agent.transport.base import Condition

LOOK_SECONDS: Final = 0.5
"""Interval of looking while envelopes come: a look reads a thousand proposals at the most."""

SHARE: Final = 0.1
"""Share of the processor that all looks together may take while much changes: one of a thousand
large proposals takes some hundredths of a second, and each person with Web Push has looks of its
own."""

MAX_TARGETS: Final = 20
"""Services of a gateway, each of which is a task."""


def make_services(config: Config) -> list[tuple[NotifyTarget, NotifyService]]:
    """The services of a configuration.

    Raises:
        ConfigurationError: One of them cannot be; the sentence says which, and not its address.
    """
    if len(config.notify) > MAX_TARGETS:
        raise ConfigurationError(f"notify: {len(config.notify)} are more than {MAX_TARGETS}")
    made: list[tuple[NotifyTarget, NotifyService]] = []
    pushing = 0
    for at, target in enumerate(config.notify):
        place = f"notify[{at}]"
        check_extra(place)
        if target.url == PUSH:
            pushing += 1
            if target.secret_file is None:
                raise ConfigurationError(
                    f"{place}: push needs secret_file, a file for its key and its browsers"
                )
            if pushing > 1 or target.space or target.participant:
                raise ConfigurationError(
                    f"{place}: push is there once, for the browsers of all who sign in"
                )
            continue
        if not _spaces_of(target, config):
            raise ConfigurationError(f"{place}: there is no such space, or participant in it")
        made.append((target, make_service(target, place)))
    return made


def check_targets(config: Config) -> None:
    """Check the services of a configuration, without making what is missing.

    Raises:
        ConfigurationError: One of them cannot be.
    """
    made = [
        replace(each, secret=each.secret or new_secret(), secret_file=None)
        if each.url != PUSH and each.secret_file is not None and not each.secret_file.exists()
        else each
        for each in config.notify
    ]
    make_services(replace(config, notify=tuple(made)))


def _spaces_of(target: NotifyTarget, config: Config) -> list[str]:
    return [
        space.id
        for space in config.spaces
        if target.space in (None, space.id)
        and (target.participant is None or target.participant in space.participants)
    ]


class ProposalChanges(UnqueuedSubscriber):
    """A subscriber of spaces that wakes whoever waits for a change of a proposal."""

    def __init__(self) -> None:
        self.form = FrameFormat(DEFAULT_DIALECT, pack_entry=_changes_a_proposal)
        self.count = 0
        self.readers = 0
        """Number of tasks that look at what waits whenever it has changed."""
        self._changed = Condition()

    async def wait(self, seen: int) -> None:
        """Wait for a change after so many."""
        while self.count == seen:
            await self._changed.wait()

    def deliver(self, packed: Entry) -> None:
        """Take an entry."""
        self.note()

    def note(self) -> None:
        """Have all of them look."""
        self.count += 1
        self._changed.notify_all()

    def close(self, code: int, reason: str) -> None:
        """The gateway ends, and this with it."""


def _changes_a_proposal(entry: Entry) -> Entry | None:
    said = entry.envelope
    changes = said.kind in TRACKED_KINDS and (
        said.kind == kinds.MCP_PROPOSAL or bool(said.correlation)
    )
    return entry if changes else None


@asynccontextmanager
async def send_notices(config: Config, runtime: GatewayRuntime) -> AsyncGenerator[None]:
    """Send the notices of a configuration for the length of a block.

    Raises:
        ConfigurationError: One of its services cannot be.
    """
    services = make_services(config)
    push = next((each for each in config.notify if each.url == PUSH), None)
    names = [service.name for _, service in services]
    if push is not None and push.secret_file is not None:
        runtime.push = PushSubscriptions(push.secret_file, allow_private=push.allow_private)
        names.append("browsers that subscribe to it in the console")
    log.info("notices of what waits go to %s", ", ".join(names))
    changes = ProposalChanges()
    async with AsyncExitStack() as stack:

        def follow(space: SpaceServer) -> None:
            space.fanout.subscribe(changes, None)
            stack.callback(space.fanout.unsubscribe, changes)
            # What waits there has come from elsewhere.
            changes.note()
            if runtime.push is not None:
                runtime.push.changed.notify_all()

        for space in runtime.spaces.values():
            follow(space)
        runtime.on_opened.append(follow)
        stack.callback(runtime.on_opened.remove, follow)
        # In a task of its own: a gateway may be begun by one task and ended by another.
        sending = asyncio.create_task(_send_all(services, push, config, runtime, changes))
        try:
            yield
        finally:
            runtime.push = None
            sending.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([sending])


async def _send_all(
    services: Sequence[tuple[NotifyTarget, NotifyService]],
    push: NotifyTarget | None,
    config: Config,
    runtime: GatewayRuntime,
    changes: ProposalChanges,
) -> None:
    async with anyio.create_task_group() as tasks:
        if push is not None and runtime.push is not None:
            tasks.start_soon(_push, push, runtime.push, runtime, changes)
        for target, service in services:
            spaces = _spaces_of(target, config)
            tasks.start_soon(NoticeTask(target, service, runtime, spaces).run, changes)


async def _push(
    target: NotifyTarget,
    subscriptions: PushSubscriptions,
    runtime: GatewayRuntime,
    changes: ProposalChanges,
) -> None:
    """Tell the browsers of each participant that has some, in a task for each of them."""
    running: dict[Identity, anyio.CancelScope] = {}

    async def tell(identity: Identity, scope: anyio.CancelScope) -> None:
        service = PushService(subscriptions, identity, runtime.spaces, runtime.tokens)
        theirs = replace(target, participant=identity.participant)
        with scope:
            await NoticeTask(theirs, service, runtime, [identity.space]).run(changes)

    async with anyio.create_task_group() as tasks:
        while True:
            people = {each for each in subscriptions.people if each.space in runtime.spaces}
            for gone in running.keys() - people:
                running.pop(gone).cancel()
            for identity in people - running.keys():
                scope = running[identity] = anyio.CancelScope()
                tasks.start_soon(tell, identity, scope)
            await subscriptions.changed.wait()


class NoticeTask:
    """Tells one service of what waits in some spaces."""

    def __init__(
        self,
        target: NotifyTarget,
        service: NotifyService,
        runtime: GatewayRuntime,
        spaces: Sequence[str],
    ) -> None:
        self._target = target
        self._service = service
        self._spaces = runtime.spaces
        self._trackers = [(each, BurstTracker(each, target.after)) for each in spaces]
        self._fails = False
        self._cost = 0.0  # seconds of the last look

    async def run(self, changes: ProposalChanges) -> None:
        """Look and tell, until cancelled."""
        changes.readers += 1
        try:
            while True:
                seen = changes.count
                due = math.inf
                self._cost = 0.0
                for space, tracker in self._trackers:
                    host = self._spaces.get(space)
                    if host is None:
                        continue
                    await self._look(host, tracker)
                    due = min(due, tracker.due)
                with anyio.CancelScope(deadline=due):
                    await changes.wait(seen)
                await anyio.sleep(max(LOOK_SECONDS, self._cost * changes.readers / SHARE))
        finally:
            changes.readers -= 1

    async def _look(self, host: SpaceServer, tracker: BurstTracker) -> None:
        began = time.perf_counter()
        waiting = host.owner.waiting_for(self._target.participant or "")
        notice = tracker.look(waiting, anyio.current_time(), host.owner.state_of)
        self._cost += time.perf_counter() - began
        if notice is None:
            return
        if notice.settled and not self._target.settled:
            tracker.sent(notice, anyio.current_time())
            return
        try:
            await self._service.send(notice, self._target.link)
        except NotDelivered as error:
            why = str(error)
        except Exception as error:
            # One service must not end the others; what was raised may have its address in it.
            why = f"an error in the program ({type(error).__name__}); please report it"
        else:
            why = ""
        now = anyio.current_time()
        if why:
            tracker.due = now + tracker.failed(now)
        else:
            tracker.sent(notice, now)
            tracker.due = now
        failed, self._fails = self._fails, bool(why)
        if why and not failed:
            said = "no notice reaches %s: %s; it is tried again, with longer and longer pauses"
            log.warning(said, self._service.name, why)
        elif failed and not why:
            log.info("notices reach %s again", self._service.name)

"""An inbox as the browsers that show it are told of it: what came, what went, and why."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.approval import InboxRenewed, ItemArrived, ItemChanged, ItemLeft
from meup_agent.gateway.console.event_queue import GATHER_SECONDS, EventQueues, pack
from meup_agent.gateway.console.template_environment import key_of, make_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.approval import Inbox, InboxChange, InboxItem
    from meup_agent.protocol.space.server import SpaceServer

QUEUE_ROWS: Final = 50
"""Proposals that the queue beside a decision shows; of more it says how many."""

MAX_SAID: Final = 5
"""Changes of one push that are read out; of more it is said how many there were."""


class InboxFeed:
    """Renders the rows of an inbox once for all browsers that show it, and says what changed.

    Each event tells the version that it leads to, and the one that it starts from: a page that has
    another one loads the queue anew.

    Args:
        inbox: The inbox.
        base: The path of the console.
        proposed_at: Tells when a proposal came, in seconds since 1970 (UTC), if that is known.
        before: The feed that the same browsers were told by before.
    """

    def __init__(
        self,
        inbox: Inbox,
        base: str,
        proposed_at: Callable[[InboxItem], float | None],
        before: InboxFeed | None = None,
    ) -> None:
        self.queues = EventQueues()
        """The streams of all who see this inbox."""
        self.inbox = inbox
        self.proposed_at = proposed_at
        """Tells since when a proposal waits."""
        self._base = base
        self._row = make_environment().get_template("inbox_row.html")
        self._why = make_environment().get_template("inbox_left.html")
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._visible: list[str] = [each for each, _ in self._newest()]
        # Where the feed before shows the same, no page has to load it anew.
        same = before is not None and before._visible == self._visible
        self.version: str = before.version if before and same else f"{self._epoch}:0"
        """The state of the queue that the last event led to."""

    @property
    def waiting(self) -> int:
        """The number of proposals that wait; those that are still to be listed count."""
        return len(self.inbox) + self.inbox.unlisted

    def _step(self) -> None:
        self._number += 1
        self.version = f"{self._epoch}:{self._number}"

    def hello(self) -> bytes:
        """The first event of a stream: the version that it begins with."""
        return pack("hello", {"version": self.version, "waiting": self.waiting})

    async def follow(self) -> None:
        """Publish the changes of the inbox, until cancelled."""
        changes = self.inbox.changes()
        published = -math.inf
        async for change in changes:
            # One rendering for all that comes in this time; what comes alone waits for nothing.
            await anyio.sleep(max(published + GATHER_SECONDS - anyio.current_time(), 0.0))
            published = anyio.current_time()
            self._publish([change, *changes.taken()])

    def _newest(self) -> list[tuple[str, InboxItem]]:
        return [(item_key(item), item) for item in self.inbox.items[:QUEUE_ROWS]]

    def _publish(self, changes: list[InboxChange]) -> None:
        if not self.queues.wants("inbox"):
            # Whoever comes next reads the page as it is then.
            self._step()
            self._visible = [key for key, _ in self._newest()]
            return
        shown = self._newest()
        keys = [key for key, _ in shown]
        before = set(self._visible)
        altered = {item_key(each.item) for each in changes if isinstance(each, ItemChanged)}
        gone = {item_key(each.item): each for each in changes if isinstance(each, ItemLeft)}
        puts: list[dict[str, str]] = []
        for at, (key, item) in enumerate(shown):
            if key not in before or key in altered or self._place_moved(key, at, keys):
                html = self._row.render(
                    item=item,
                    key=key,
                    base=self._base,
                    current="",
                    proposed_at=self.proposed_at,
                )
                following = keys[at + 1] if at + 1 < len(keys) else ""
                puts.append({"id": key, "before": following, "html": html})
        was, self._visible = self.version, keys
        self._step()
        event: dict[str, Any] = {
            "was": was,
            "version": self.version,
            "waiting": self.waiting,
            # From the last to the first, so that the row before which one goes is there.
            "put": puts[::-1],
            "drop": sorted(before - set(keys)),
            "left": {key: self._why.render(left=left) for key, left in gone.items()},
            "changed": sorted(altered),
            "said": _read_out(changes),
            "renew": any(isinstance(each, InboxRenewed) for each in changes),
        }
        self.queues.publish("inbox", pack("inbox", event))

    def _place_moved(self, key: str, at: int, keys: list[str]) -> bool:
        """True if a row has another neighbour behind it than before, that was there before, too."""
        if at + 1 >= len(keys) or key not in self._visible or keys[at + 1] not in self._visible:
            return False
        return self._visible.index(key) > self._visible.index(keys[at + 1])


def proposed_in(host: SpaceServer, item: InboxItem) -> float | None:
    """The time at which a space accepted an open proposal, in seconds since 1970 (UTC)."""
    at = host.owner.proposed_at(item.proposer, item.id)
    return None if at is None else at / 1_000_000


def item_key(item: InboxItem) -> str:
    """The address of a proposal that waits."""
    return key_of(item.proposer, item.id)


def _read_out(changes: list[InboxChange]) -> list[str]:
    """Words for what came and went, for those who do not see it."""
    said: list[str] = []
    for each in changes:
        if isinstance(each, ItemArrived):
            said.append(f"New: {each.item.proposer} proposes {each.item.tool or each.item.method}")
        elif isinstance(each, ItemLeft):
            said.append(f"Gone: {each.item.tool or each.item.method}, {each.words}")
    if len(said) > MAX_SAID:
        return [f"{len(said)} proposals came or went"]
    return [each[:200] for each in said]

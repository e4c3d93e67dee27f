"""The gateway's own envelopes: welcomes, presences, errors, and what it ends in another's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from meup_agent.protocol.dialects import DEFAULT_DIALECT, encode
from meup_agent.protocol.timestamps import rfc3339

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.fanout import Fanout
    from meup_agent.protocol.space.journal import Journal
    from meup_agent.protocol.space.members import Member


class Announcer:
    """Sends drafts of the gateway, each with an id and a time of its own."""

    def __init__(
        self,
        space: str,
        journal: Journal,
        fanout: Fanout,
        *,
        new_id: Callable[[], str],
        now: Callable[[], int],
        is_here: Callable[[Member], bool],
    ) -> None:
        self._space = space
        self._journal = journal
        self._fanout = fanout
        self._new_id = new_id
        self._now = now
        self._is_here = is_here

    def stamp(self, draft: Envelope) -> Envelope:
        """A draft as an envelope, with its id and its time."""
        return msgspec.structs.replace(draft, id=self._new_id(), ts=rfc3339(self._now()))

    def broadcast(self, draft: Envelope) -> None:
        """Send to all: the only way there is, through the journal."""
        envelope = self.stamp(draft)
        # Encoded here, so that the journal and the fanout do not both encode it.
        frame = encode(envelope, DEFAULT_DIALECT)
        envelope = msgspec.structs.replace(envelope, protocol=DEFAULT_DIALECT, frame=frame)
        self._journal.append(self._space, envelope, (), self._fanout.deliver)

    def notify(self, member: Member, draft: Envelope) -> None:
        """Send to one member, after everything that was decided before.

        A connection that takes over meanwhile does not get it: nothing may come before its welcome,
        and that was decided later.
        """
        self._journal.call_when_kept(partial(self.notify_now, member, self.stamp(draft)))

    def notify_now(self, member: Member, envelope: Envelope) -> None:
        """Deliver a stamped envelope to one member, if it is still here."""
        if self._is_here(member):
            self._fanout.deliver_to(member, envelope)

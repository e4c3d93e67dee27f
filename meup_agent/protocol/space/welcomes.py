"""Welcomes: a newcomer is told who is present, put together from what was encoded before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meup_agent.protocol import kinds
from meup_agent.protocol.control_payloads import PAUSED_KEY
from meup_agent.protocol.dialects import PUBLISHED
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.guarantees import OURS, said_by
from meup_agent.protocol.payloads import JsonObject
from meup_agent.protocol.space.decisions import gateway_draft
from meup_agent.protocol.space.grants import GrantStore
from meup_agent.protocol.space.presence import describe_participant
from meup_agent.protocol.space.streams import StreamStore
from meup_agent.protocol.streams import STREAMS_KEY

_READERS: Final = ("", "mew/v0.4")
"""A dialect for each form in which participants are described."""


class WelcomeWriter:
    """Writes welcomes, and keeps the descriptions of those who are present as JSON.

    Each newcomer is told of all the others: to encode all of them anew took half of the time
    in which 2,000 came.
    """

    def __init__(
        self, grants: GrantStore, present: Mapping[str, str], streams: StreamStore
    ) -> None:
        self._grants = grants
        self._streams = streams
        # The dialect of each, in the order in which they came.
        self._present = present
        # For readers of the published dialects and for others, and since which change of anyone's
        # capabilities.
        self._descriptions: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
        self._described_at = 0

    def joined(self, participant: str) -> None:
        """Describe a participant anew that was here before, in another dialect perhaps."""
        for reader, descriptions in zip(_READERS, self._descriptions, strict=True):
            if participant in descriptions:  # in its place, the order is that of coming
                descriptions[participant] = self._encoded(participant, reader)

    def left(self, participant: str) -> None:
        """Forget a participant that has left."""
        for descriptions in self._descriptions:
            descriptions.pop(participant, None)

    def describe(self, participant: str, reader: str = "") -> JsonObject:
        """A participant as a reader of a dialect is told of it."""
        dialect = self._present.get(participant, "")
        return describe_participant(participant, self._grants[participant], dialect, reader=reader)

    def write(
        self,
        participant: str,
        left_out: str,
        more: Mapping[str, Any],
        reader: str,
        paused: JsonObject | None,
    ) -> Envelope:
        """The draft of a welcome for a participant, which a pause may hold."""
        present = dict(self._described_present(reader))
        present.pop(left_out, None)
        you = self._encoded(participant, reader)
        if paused is not None:
            you = encode_json({**self.describe(participant, reader), PAUSED_KEY: paused})
        rest = encode_json({**more, **said_by(OURS), STREAMS_KEY: {"journaled": False}})
        raw = b'{"you":%b,"participants":[%b],"active_streams":%b,%b' % (
            you,
            b",".join(present.values()),
            self._streams.encoded,
            rest[1:],
        )
        return gateway_draft(kinds.SYSTEM_WELCOME, raw, to=participant)

    def _described_present(self, reader: str) -> dict[str, bytes]:
        """The participants in the space, in the order in which they came, each as JSON."""
        if self._described_at != self._grants.changes:
            self._described_at = self._grants.changes
            for each in self._descriptions:
                each.clear()
        descriptions = self._descriptions[reader in PUBLISHED]
        if len(descriptions) != len(self._present):
            for name in self._present:
                if name not in descriptions:
                    descriptions[name] = self._encoded(name, reader)
        return descriptions

    def _encoded(self, participant: str, reader: str) -> bytes:
        return encode_json(self.describe(participant, reader))

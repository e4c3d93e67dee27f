"""Differences between the two existing gateways (PROTOCOL 2), as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Version:
    """One existing gateway, as it was observed.

    The newer one extends everybody's capabilities by `mcp/response`, relays `system/heartbeat` and
    refuses `system/register` whatever the capabilities. It answers a grant with a second welcome
    (the older one with a `grant-ack`), `space/invite` with a token (the older one relays it), and
    `stream/request` with `stream/open`; it relays `#stream#data` as a binary frame, and has
    `active_streams` in its welcome. `!value` in a capability means any other value to it, and its
    complaint about bad JSON says line and column.

    Attributes:
        protocol: what it writes into the envelopes that it makes.
        accepts: what it lets pass in those of others; a missing one is filled in.
        is_newer: whether it does all that.
    """

    protocol: str
    accepts: frozenset[str]
    is_newer: bool

    @property
    def to_routes(self) -> bool:
        """An envelope with a list in `to` reaches those in it alone; else all, its sender too."""
        return not self.is_newer


MEUP_V02 = Version("meup/v0.2", frozenset({"meup/v0.2"}), is_newer=False)
MEW_V04 = Version("mew/v0.4", frozenset({"mew/v0.4", "mew/v0.3"}), is_newer=True)

"""Differences between the two existing gateways (PROTOCOL 2), as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Version:
    """One existing gateway, as it was observed.

    Attributes:
        protocol: what it writes into the envelopes that it makes.
        accepts: what it lets pass in those of others; a missing one is filled in.
        to_routes: an envelope with a list in `to` reaches those in the list and nobody else;
            otherwise everything reaches everybody, the sender included.
        answers_always: everybody's capabilities are extended by `mcp/response`.
        heartbeats: `system/heartbeat` is relayed whatever the capabilities; `system/register`
            is refused whatever they are.
        grants_welcome: a grant brings its recipient a second welcome; otherwise a `grant-ack`.
        makes_invitations: `space/invite` is answered with a token; otherwise it is relayed.
        has_streams: `stream/request` is answered with `stream/open`, `#stream#data` is relayed as a
            binary frame, and the welcome has `active_streams`.
        negations: `!value` in a capability means any other value.
        json_position: its complaint about bad JSON says line and column.
    """

    protocol: str
    accepts: frozenset[str]
    to_routes: bool
    answers_always: bool
    heartbeats: bool
    grants_welcome: bool
    makes_invitations: bool
    has_streams: bool
    negations: bool
    json_position: bool


MEUP_V02 = Version(
    protocol="meup/v0.2",
    accepts=frozenset({"meup/v0.2"}),
    to_routes=True,
    answers_always=False,
    heartbeats=False,
    grants_welcome=False,
    makes_invitations=False,
    has_streams=False,
    negations=False,
    json_position=False,
)

MEW_V04 = Version(
    protocol="mew/v0.4",
    accepts=frozenset({"mew/v0.4", "mew/v0.3"}),
    to_routes=False,
    answers_always=True,
    heartbeats=True,
    grants_welcome=True,
    makes_invitations=True,
    has_streams=True,
    negations=True,
    json_position=True,
)

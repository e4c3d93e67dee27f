"""The spaces of a gateway, by name."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from urllib.parse import quote

import anyio

from meup_agent.gateway.admission import JoinThrottle, check_members, check_observers
from meup_agent.gateway.auth import AddressTokens, AuthThrottle, Identity, new_token
from meup_agent.gateway.backlog import Backlogs
from meup_agent.gateway.config import Config
from meup_agent.gateway.logs import RefusalLog
from meup_agent.protocol.dialects import DEFAULT_DIALECT, spoken
from meup_agent.protocol.space.counters import Counters
from meup_agent.protocol.space.journal import Journal, MemoryJournal
from meup_agent.protocol.space.rate_limits import Allowance
from meup_agent.protocol.space.server import SpaceServer


def wall_clock() -> int:
    """The time in microseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000


class GatewayRuntime:
    """Every space of a gateway.

    Args:
        config: The spaces and their participants.
        journal: Keeps what is accepted; in memory by default.
        new_id: Makes the ids of the gateway's own envelopes.
        now: Tells the time in microseconds since 1970 (UTC).

    Attributes:
        journal: What was accepted.
        counters: What has happened, over all spaces.
        backlogs: What waits for slow readers, over all spaces.
        tokens: Whose each token is.
        url: Where members dial; empty until somebody listens.
        spaces: The spaces by id.
        join_throttle: Counts who joins, and who connects without a token.
        refusals: Logs who does not get in.
        asked: Requests over HTTP that wait for their answer, to be given up.

    Raises:
        ConfigurationError: Two participants have the same token.
    """

    def __init__(
        self,
        config: Config,
        *,
        journal: Journal | None = None,
        new_id: Callable[[], str] | None = None,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        kept = config.journal
        self.journal = journal or MemoryJournal(
            now, max_entries=kept.memory_entries, max_bytes=kept.memory_bytes
        )
        self._config = config
        self.counters = Counters()
        self.tokens = config.tokens()
        self.url = ""
        self.asked = set[anyio.CancelScope]()
        limits = config.limits
        self.backlogs = Backlogs(limits, self.counters)
        self.join_throttle = JoinThrottle(limits, now)
        self.refusals = RefusalLog(now)
        self._throttle = AuthThrottle(
            self.tokens, limits.failed_tokens, limits.failed_token_seconds, now
        )
        allowance = Allowance(
            max_depth=limits.max_depth,
            messages_per_second=limits.messages_per_second,
            messages_burst=limits.messages_burst,
            bytes_per_second=limits.bytes_per_second,
            bytes_burst=limits.bytes_burst,
            withdrawals_per_second=limits.withdrawals_per_second,
            withdrawals_burst=limits.withdrawals_burst,
            max_open_proposals=limits.max_open_proposals,
            max_observers=limits.max_observers,
        )
        self.spaces = {
            space.id: SpaceServer(
                space.id,
                participants={
                    participant_id: participant.capabilities
                    for participant_id, participant in space.participants.items()
                },
                journal=self.journal,
                new_id=new_id or _random_id,
                now=now,
                counters=self.counters,
                allowance=allowance,
                invites=_SpaceInvites(self, space.id),
                announce_withdrawals=space.announce_withdrawals,
                backpressure=self.backlogs.in_space(space.id),
            )
            for space in config.spaces
        }

    def tokens_at(self, address: str) -> AddressTokens:
        """Every token, as somebody at an address may ask for them (PROTOCOL 3)."""
        return AddressTokens(self._throttle, address)

    def check_members(self, identity: Identity, *, observes: bool = False) -> None:
        """Check that somebody's space has room for it.

        Args:
            identity: Who wants to come in.
            observes: It only looks on.

        Raises:
            NotAdmitted: It has none.
        """
        host = self.spaces[identity.space]
        if observes:
            check_observers(identity.participant, host.observers)
            return
        check_members(identity.participant, host, len(host), self._config.limits.max_members)

    def dialect(self, identity: Identity) -> str:
        """The dialect of somebody who does not say which it speaks (PROTOCOL 1)."""
        space = self._config.space(identity.space)
        participant = space.participants.get(identity.participant) if space else None
        configured = (participant and participant.dialect) or (space and space.dialect)
        return spoken(configured or DEFAULT_DIALECT) or DEFAULT_DIALECT

    def close(self, code: int, reason: str) -> None:
        """Close every member of every space."""
        self.refusals.tell_left_out()
        for space in self.spaces.values():
            space.close(code, reason)

    def give_up(self) -> None:
        """Let nobody wait over HTTP for what cannot come any more."""
        for scope in tuple(self.asked):
            scope.cancel()


class _SpaceInvites:
    """Lets those into one space who were invited there."""

    def __init__(self, runtime: GatewayRuntime, space: str) -> None:
        self._runtime = runtime
        self._space = space
        self._admitted: dict[str, str] = {}

    def new_token(self) -> str:
        return new_token()

    def admit(self, participant: str, token_sha256: str) -> None:
        before = self._admitted.pop(participant, None)
        if before is not None:
            self._runtime.tokens.forget(before)
        self._admitted[participant] = token_sha256
        self._runtime.tokens.add(token_sha256, Identity(self._space, participant))

    def address(self) -> str:
        return (
            f"{self._runtime.url}/ws?space={quote(self._space, safe='')}"
            if self._runtime.url
            else ""
        )


def _random_id() -> str:
    return secrets.token_hex(16)

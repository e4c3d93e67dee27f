"""Reviewer: an agent that decides by a policy file, and reminds people of what is left to them."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.approval.decider import Decider, refuse_quorum
from meup_agent.approval.policy import Policy, PolicyDecision, meta_of
from meup_agent.approval.policy_file import parse_yaml, read_file, read_policy
from meup_agent.errors import ConfigurationError, MeupError, printable
from meup_agent.protocol import kinds
from meup_agent.protocol.payloads import META
from meup_agent.reasons import Reason
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meup_agent.client.proposal import Proposal
    from meup_agent.client.space import Space

log = logging.getLogger("meup_agent.approval")

POLL_SECONDS: Final = 0.5
"""Interval at which reminders are looked at, and the file, of which each decision looks anew."""

FRESH_SECONDS: Final = 2.0
"""Age of a file below which another write may leave its time as it is; it is read to be sure."""

MAX_HELD: Final = 1_000
"""Proposals of which people are reminded; of more, the oldest are forgotten."""

SAY_SECONDS: Final = 5.0
"""Wait for the gateway to take one rejection or reminder."""

MAX_NAME: Final = 64  # characters of a tool or participant in a reminder

_Stamp = tuple[int, int, int]


class WatchedPolicy:
    """A policy file that is read again when it changes, or refused whole while the old one stays.

    Raises:
        ConfigurationError: It does not load at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._refused = ""
        self._stamp = self._look()
        self._raw = read_file(path)
        self._settled = self._is_settled()
        self._policy = self._read()

    def current(self) -> Policy:
        """The policy as the file has it now, or had it when it was good."""
        try:
            stamp = self._look()
            if stamp == self._stamp and self._settled:
                return self._policy
            # Looked at before it is read: a write in between is seen the next time.
            self._stamp, self._settled = stamp, False
            raw = read_file(self._path)
            self._settled = self._is_settled()
            if raw != self._raw:
                self._raw = raw
                self._policy = self._read()
                log.info("%s is read again: %r", self._path, self._policy)
        except ConfigurationError as error:
            self._refuse(str(error))
        return self._policy

    def _refuse(self, why: str) -> None:
        said = f"{self._path} is refused, and the policy before it stays: {why}"
        if said != self._refused:
            log.error("%s", printable(said))
        self._refused = said

    def _look(self) -> _Stamp:
        try:
            found = self._path.stat()
        except OSError as error:
            why = (error.strerror or "unknown reason").lower()
            # The same text in a new file is taken as new.
            self._raw, self._settled = b"", False
            raise ConfigurationError(f"cannot be read ({why})") from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _is_settled(self) -> bool:
        return time.time_ns() - self._stamp[0] > FRESH_SECONDS * 1e9

    def _read(self) -> Policy:
        policy = read_policy(parse_yaml(self._raw))
        refuse_quorum(policy)
        self._refused = ""
        return policy


@dataclass(slots=True)
class HeldProposal:
    """A proposal that people decide."""

    proposal: Proposal
    space: Space
    decision: PolicyDecision
    since: float
    reminded: float


class Reviewer:
    """Decides by a policy file; what is asked it leaves to people, and reminds them by chat.

    Args:
        path: The policy file.

    Raises:
        ConfigurationError: The file does not load.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.policy = WatchedPolicy(path)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None
        self._held: OrderedDict[tuple[str, str], HeldProposal] = OrderedDict()
        self.agent = Agent("reviewer")
        Decider(self.policy.current, held=self.hold).install(self.agent)

    @asynccontextmanager
    async def join(self, *where: Any, **options: Any) -> AsyncGenerator[Space]:
        """Be in a space, as :meth:`Agent.join`, with its reminders."""
        async with (
            self.agent.join(*where, **options) as space,
            background_tasks() as tasks,
        ):
            tasks.start_soon(self._remind)
            yield space
            tasks.cancel_scope.cancel()

    def hold(self, proposal: Proposal, space: Space, decision: PolicyDecision) -> None:
        """Remember a proposal that people decide, while it is pending."""
        now = anyio.current_time()
        key = (proposal.proposer, proposal.id)
        self._held[key] = HeldProposal(proposal, space, decision, now, now)
        if len(self._held) > MAX_HELD:
            self._held.popitem(last=False)

    async def _remind(self) -> None:
        while True:
            await anyio.sleep(POLL_SECONDS)
            self.policy.current()  # so that a file which is refused is told at once
            for key, held in list(self._held.items()):
                state = held.proposal.state
                if state is None or not state.is_pending:
                    self._held.pop(key, None)
                    continue
                try:
                    # It is on its way by then; others wait no longer for one that is not taken.
                    with anyio.move_on_after(SAY_SECONDS):
                        await self._see_to(key, held)
                except MeupError as error:
                    log.warning("proposal %s: %s", held.proposal.id, printable(str(error)))

    async def _see_to(self, key: tuple[str, str], held: HeldProposal) -> None:
        decision, now = held.decision, anyio.current_time()
        if decision.ttl is not None and now - held.since >= decision.ttl:
            # Once: what cannot be rejected is still decided by people, or expires.
            self._held.pop(key, None)
            await held.proposal.reject(
                Reason.TIMEOUT,
                explain=f"No participant decided within {decision.ttl:g} s. That is neither a"
                " refusal nor a permission.",
                rule=decision.told,
            )
        elif decision.remind is not None and now - held.reminded >= decision.remind:
            held.reminded = now
            payload = {"message": _reminder(held, now), META: dict(meta_of(decision))}
            await held.space.send(kinds.CHAT, payload, correlation=held.proposal.id)


def _reminder(held: HeldProposal, now: float) -> str:
    proposal, ttl = held.proposal, held.decision.ttl
    left = "" if ttl is None else f", {ttl - (now - held.since):.0f} s left"
    tool = printable((proposal.tool or proposal.method)[:MAX_NAME])
    return (
        f"Proposal {proposal.id} of {printable(proposal.proposer[:MAX_NAME])!r} waits for a"
        f" decision: {tool!r}, asked by the rule {held.decision.rule!r}{left}."
    )

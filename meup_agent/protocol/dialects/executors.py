"""The executor of a proposal, and of the request that fulfills it (PROTOCOL 4.4).

``to`` of a proposal names its deciders, but in the published dialects its executor. Agents, gateway
and audit all read it here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from meup_agent.protocol import payloads
from meup_agent.protocol.dialects.translate import members_of, unwrap_members
from meup_agent.protocol.envelope import Envelope, encode_leniently
from meup_agent.protocol.kinds import MCP_PROPOSAL

NAMING_EXECUTORS: Final = frozenset({"meup/v0.2", "mew/v0.4", "mew/v0.3"})
"""Names on the wire of the published dialects, in which ``to`` of a proposal is its executor."""


class Addressees(NamedTuple):
    """The participants that a proposal names."""

    deciders: tuple[str, ...] = ()  # those that decide it; empty: all that may
    executor: str | None = None  # the participant that should carry it out; ``None``: none is named

    def as_kept(self) -> Addressees:
        """The same, as it is kept by the thousand."""
        return self._replace(executor=self.executor and payloads.kept_name(self.executor))


def read_addressees(proposal: Envelope, call: payloads.Call) -> Addressees:
    """The addressees of a proposal, in the dialect that it says."""
    published = proposal.protocol in NAMING_EXECUTORS
    executor = _named_executor(proposal.to, call.target, published, published)
    return Addressees(proposal.to, call.target) if executor is None else Addressees((), executor)


def as_broadcast(proposal: Envelope, sender: str | None = None, own: str = "") -> Envelope | None:
    """A proposal as a broadcast, with its addressee as executor; ``None``: it decides.

    ``sender`` and ``own`` are the dialects of its sender, by default what it says, and of this
    connection. What came translated into a published dialect names its target in ``to``, from any
    sender.
    """
    sender = proposal.protocol if sender is None else sender
    by_published = sender in NAMING_EXECUTORS
    is_published = by_published or own in NAMING_EXECUTORS
    if len(proposal.to) != 1 or not is_published:
        return None  # before the payload is decoded
    target = payloads.read_proposal(proposal.payload).target
    executor = _named_executor(proposal.to, target, by_published, is_published)
    if executor is None:
        return None
    if target == executor:
        return proposal.replace(to=())
    return proposal.replace(to=(), raw_payload=_with_target(proposal.raw_payload, executor))


def to_target(envelope: Envelope) -> Envelope:
    """An envelope for the dialects in which ``to`` of a proposal names its deciders."""
    if envelope.kind != MCP_PROPOSAL or envelope.protocol not in NAMING_EXECUTORS:
        return envelope
    return as_broadcast(envelope) or envelope


def choose_executors(proposal: Addressees, fulfiller: str) -> tuple[str, ...]:
    """The executors of a fulfilling request without ``to``; empty: the proposal names none."""
    if proposal.executor is not None:
        return (proposal.executor,)
    # A decider does not carry it out: a request to oneself names oneself (PROTOCOL 4.11).
    asked = tuple(name for name in proposal.deciders if name != fulfiller)
    return asked if len(asked) == 1 else ()


def _named_executor(
    to: tuple[str, ...], target: str | None, by_published: bool, is_published: bool
) -> str | None:
    """The executor that ``to`` of a proposal names; ``None``: it names who decides."""
    if len(to) != 1 or not is_published:
        return None
    (executor,) = to
    return executor if target == executor or (target is None and by_published) else None


def _with_target(payload: bytes, executor: str) -> bytes:
    """A proposal's payload that names its executor; all else of the call is as it was written."""
    members = unwrap_members(members_of(payload) or {})
    params = members_of(members.get("params", b"")) or {}
    meta = members_of(params.get(payloads.META, b"")) or {}
    meta[payloads.TARGET] = msgspec.Raw(encode_leniently(executor))
    params = {**params, payloads.META: msgspec.Raw(encode_leniently(meta))}
    return encode_leniently({**members, "params": params})

"""Decision log: the decisions that participants made about proposals, read from a journal.

A decision is a request that carries a proposal out, or a rejection. One by a policy is known by its
rule; only those of people are evidence for a suggestion. What was edited, and what both was
rejected and carried out, counts as not approved.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from itertools import islice
from typing import Any, Final

import msgspec

from meup_agent.approval.rules import Verdict
from meup_agent.causes import read_reason
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.payloads import TOOL_CALL, Call
from meup_agent.protocol.told_rule import read_told_rule

MAX_PROPOSALS: Final = 500_000
"""Proposals of a journal that are kept, the latest: half a gigabyte of them at the most."""

MAX_VALUE_CHARS: Final = 200
"""Characters of a text among the arguments that are kept; a path of rules is shorter."""

MAX_ARGUMENTS: Final = 16
"""Arguments of a call that are kept, by name."""

_hash_json = msgspec.json.Encoder(order="sorted").encode


class Judgement(StrEnum):
    """The judgement of a participant about a proposal."""

    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"


class LoggedProposal(msgspec.Struct, gc=False):
    """A proposal, and what was decided about it.

    Attributes:
        arguments: Its arguments as far as rules are suggested about them: long texts are cut off,
            and what is no text, number or boolean is an empty object.
        judgement: What was made of it; ``None`` while nothing was.
        by_people: The decision names no rule of a policy, but one that asks.
        reason: The reason of its rejection.
        is_whole: All its arguments are here; of those with very many, some are not.
    """

    id: str
    proposer: str
    tool: str
    target: str | None
    arguments: dict[str, Any]
    content: bytes
    judgement: Judgement | None = None
    by_people: bool = True
    reason: str = ""
    is_whole: bool = True

    @property
    def call(self) -> Call:
        """The call, as rules see it."""
        params: dict[str, Any] = {"name": self.tool, "arguments": self.arguments}
        if self.target is not None:
            params[payloads.META] = {payloads.TARGET: self.target}
        return Call(TOOL_CALL, params)


class DecisionLog:
    """The proposals of a space with their decisions, oldest first."""

    def __init__(self) -> None:
        self._proposals: dict[tuple[str, str], LoggedProposal] = {}
        self._replaced: list[LoggedProposal] = []
        self._proposers: dict[str, tuple[str, ...]] = {}

    def decided(self) -> list[LoggedProposal]:
        """The proposals about which something was decided."""
        found = [*self._replaced, *self._proposals.values()]
        return [each for each in found if each.judgement is not None]

    def add(self, envelope: Envelope) -> None:
        """Take the next envelope of the space's journal in."""
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self._propose(envelope)
            case kinds.MCP_REQUEST if envelope.correlation:
                self._fulfill(envelope)
            case kinds.MCP_REJECT:
                self._reject(envelope)
            case _:
                pass

    def _propose(self, envelope: Envelope) -> None:
        call = payloads.read_proposal(envelope.payload)
        if call.method != TOOL_CALL or not call.name:
            return
        key = (envelope.sender, envelope.id)
        arguments = _kept(call.arguments)
        made = LoggedProposal(
            envelope.id,
            envelope.sender,
            call.name,
            call.target,
            arguments,
            _content(call),
            is_whole=arguments.keys() == call.arguments.keys(),
        )
        known = self._proposals.pop(key, None)
        if known is not None:
            if known.content == made.content:
                self._proposals[key] = known
                return
            self._replaced.append(known)
        self._proposals[key] = made
        others = self._proposers.get(envelope.id, ())
        if envelope.sender not in others:
            self._proposers[envelope.id] = (*others, envelope.sender)
        if len(self._proposals) > MAX_PROPOSALS:
            proposer, id = next(iter(self._proposals))
            del self._proposals[proposer, id]
            left = tuple(each for each in self._proposers.pop(id, ()) if each != proposer)
            if left:
                self._proposers[id] = left

    def _fulfill(self, envelope: Envelope) -> None:
        call = payloads.read_call(envelope.payload)
        if call.method != TOOL_CALL or len(envelope.correlation) != 1:
            return
        [id] = envelope.correlation
        proposer = str(call.meta.get(payloads.PROPOSER) or "")
        theirs = [each for each in self._proposers.get(id, ()) if proposer in ("", each)]
        if len(theirs) != 1 or theirs[0] == envelope.sender:
            return
        proposal = self._proposals.get((theirs[0], id))
        if proposal is None or proposal.tool != call.name:
            return
        # Without ``to`` it starts at the target (PROTOCOL 4.4).
        where = proposal.target is None or envelope.to in ((), (proposal.target,))
        same = where and proposal.content == _content(call)
        found = Judgement.APPROVED if same else Judgement.EDITED
        self._judge(proposal, found, call.params)

    def _reject(self, envelope: Envelope) -> None:
        payload = envelope.payload_object
        for id in envelope.correlation:
            proposers = self._proposers.get(id, ())
            for proposer in proposers:
                proposal = self._proposals.get((proposer, id))
                if proposal is None or proposer == envelope.sender:
                    continue
                proposal.reason = proposal.reason or read_reason(payload.get("reason"))
                self._judge(proposal, Judgement.REJECTED, payload)
                if len(proposers) > 1:
                    # It may mean another one under this id: it keeps a rule from allowing, and
                    # is no evidence for one that denies.
                    proposal.by_people = False

    def _judge(self, proposal: LoggedProposal, found: Judgement, holder: object) -> None:
        rule = read_told_rule(holder)
        if rule is not None and rule.verdict != Verdict.ASK:
            proposal.by_people = False
        # Of several decisions the one that holds most back counts.
        if proposal.judgement in (None, Judgement.APPROVED) or found is Judgement.REJECTED:
            proposal.judgement = found


def _content(call: Call) -> bytes:
    """A hash of a call's parameters, without ``_meta``."""
    params = {name: value for name, value in call.params.items() if name != payloads.META}
    return hashlib.blake2b(_hash_json(params), digest_size=16).digest()


def _kept(arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in islice(arguments.items(), MAX_ARGUMENTS):
        kept = value[:MAX_VALUE_CHARS] if isinstance(value, str) else value
        found[name[:MAX_VALUE_CHARS]] = kept if isinstance(kept, str | int | float) else {}
    return found

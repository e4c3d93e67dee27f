"""Allowed calls: those of a journal that a rule once let through, held against the rules of today.

A rule that is read otherwise than before, or was written anew, asks people about calls that nobody
was asked about. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from meup_agent.approval.policy import Policy
from meup_agent.approval.rules import AllowRule, Verdict
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.payloads import TOOL_CALL, Call
from meup_agent.protocol.told_rule import read_told_rule

MAX_TURNED: Final = 10_000
"""Calls that are kept because they are allowed no longer; more are counted."""


class TurnedCall(NamedTuple):
    """A call that was allowed, and is no longer.

    Attributes:
        proposal: The id of its proposal.
        proposer: The participant that proposed it.
        tool: The tool.
        before: The rule that allowed it.
        verdict: The verdict of today.
        rule: The rule of today.
        lacking: A rule that would allow it, did it name some arguments; empty: there is none.
        unnamed: Those arguments.
    """

    proposal: str
    proposer: str
    tool: str
    before: str
    verdict: Verdict
    rule: str
    lacking: str
    unnamed: tuple[str, ...]


class AllowedCalls:
    """The calls that rules allowed, as fulfilling requests tell it, and what a policy says of them.

    Attributes:
        count: Calls that were allowed.
        turned: Those that the policy does not allow, oldest first.
        turned_count: Their number.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Each allow, as it would be if it named all arguments.
        self._open = [
            (name, rule, Policy([replace(rule, others="any")]))
            for name, rule in zip(policy.names, policy.rules, strict=True)
            if isinstance(rule, AllowRule) and rule.others_free is not None
        ]
        self.count = self.turned_count = 0
        self.turned: list[TurnedCall] = []

    def add(self, envelope: Envelope) -> None:
        """Take the next envelope of the space's journal in."""
        if envelope.kind != kinds.MCP_REQUEST or not envelope.correlation:
            return
        sent = payloads.read_call(envelope.payload)
        told = read_told_rule(sent.params)
        proposer = sent.meta.get(payloads.PROPOSER)
        if told is None or told.verdict != Verdict.ALLOW or not isinstance(proposer, str):
            return
        self.count += 1
        target = {payloads.TARGET: envelope.to[0]} if envelope.to else {}
        call = msgspec.structs.replace(sent, params={**sent.params, payloads.META: target})
        found = self._policy.decide(call, proposer)
        if found.verdict is Verdict.ALLOW:
            return
        self.turned_count += 1
        if len(self.turned) < MAX_TURNED:
            lacking, unnamed = self._lacking(call, proposer)
            self.turned.append(
                TurnedCall(
                    envelope.correlation[0],
                    proposer,
                    call.name or call.method,
                    told.name,
                    found.verdict,
                    found.rule,
                    lacking,
                    unnamed,
                )
            )

    def _lacking(self, call: Call, proposer: str) -> tuple[str, tuple[str, ...]]:
        """The first rule that would allow a call, did it name arguments that it has, and these."""
        if call.method == TOOL_CALL:
            for name, rule, policy in self._open:
                if policy.decide(call, proposer).verdict is Verdict.ALLOW:
                    free = rule.named.union(rule.others_free or ())
                    return name, tuple(sorted(call.arguments.keys() - free))
        return "", ()

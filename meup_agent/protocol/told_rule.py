"""Told rules: the rule of a policy that a decision names, as its sender says (PROTOCOL 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from meup_agent.protocol.payloads import META, RULE, as_object

MAX_TOLD_CHARS: Final = 200
"""Characters of a rule's name, verdict or digest, or of a voter's name, that are kept."""

MAX_TOLD_VOTES: Final = 100
"""Votes that are kept of one decision: as many as a rule has voters."""


class ToldRule(msgspec.Struct, frozen=True):
    """A rule, as a fulfilling request or a rejection tells it.

    Attributes:
        name: The rule's name.
        verdict: Its verdict: ``allow``, ``ask``, ``deny`` or ``quorum``.
        policy: The policy's digest.
        of: Votes that it takes; 0 where it takes none.
        votes: The votes that its sender has counted.
    """

    name: str
    verdict: str = ""
    policy: str = ""
    of: int = 0
    votes: Mapping[str, str] = {}

    @property
    def document(self) -> dict[str, Any]:
        """The rule as JSON has it."""
        said: dict[str, Any] = {
            "rule": self.name,
            "verdict": self.verdict or None,
            "policy": self.policy or None,
        }
        return said | {"of": self.of, "votes": dict(self.votes)} if self.of else said


def read_told_rule(holder: object) -> ToldRule | None:
    """The rule in the ``_meta`` of parameters or of a payload; ``None`` where there is none."""
    said = as_object(as_object(as_object(holder).get(META)).get(RULE))
    name = said.get("rule")
    if not isinstance(name, str) or not name:
        return None
    of = said.get("of")
    votes = {
        voter[:MAX_TOLD_CHARS]: vote[:MAX_TOLD_CHARS]
        for voter, vote in list(as_object(said.get("votes")).items())[:MAX_TOLD_VOTES]
        if isinstance(vote, str)
    }
    return ToldRule(
        name[:MAX_TOLD_CHARS],
        _text(said.get("verdict")),
        _text(said.get("policy")),
        of if isinstance(of, int) and not isinstance(of, bool) and of > 0 else 0,
        votes,
    )


def _text(said: object) -> str:
    return said[:MAX_TOLD_CHARS] if isinstance(said, str) else ""

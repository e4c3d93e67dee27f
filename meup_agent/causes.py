"""Reasons and causes: why an exchange was rejected, withdrawn or cancelled (PROTOCOL 4.3, 4.12).

A *reason* is a short code that travels on the wire. A *cause* is the whole story that one
participant can know: the reason, who gave it, when, and the chain of exchanges it came along.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, cast

import msgspec

MAX_CHAIN = 8
"""Steps that a cancellation carries; a longer cascade goes on without them (PROTOCOL 6)."""

MAX_REASON_CHARS = 1024
"""Characters of a stranger's reason or text that are kept."""


class Reason(StrEnum):
    """The reason codes of PROTOCOL 4.3; other codes from the wire stay plain strings."""

    DISAGREE = "disagree"
    INAPPROPRIATE = "inappropriate"
    UNSAFE = "unsafe"
    BUSY = "busy"
    INCAPABLE = "incapable"
    POLICY = "policy"
    DUPLICATE = "duplicate"
    INVALID = "invalid"
    TIMEOUT = "timeout"
    RESOURCE_LIMIT = "resource_limit"
    NO_LONGER_NEEDED = "no_longer_needed"
    OTHER = "other"
    REVOKED = "revoked"


REASONS_TO_REJECT = tuple(
    each for each in Reason if each not in (Reason.NO_LONGER_NEEDED, Reason.REVOKED)
)
"""Those with which a proposal is rejected; the others are a proposer's and a gateway's."""

_KNOWN = {str(reason) for reason in Reason}


_UNDECIDED = (Reason.INCAPABLE, Reason.BUSY)


def declines(reason: str) -> bool:
    """True if a rejection for a reason is its sender's decision, which it cannot take back.

    An agent without a handler, or without time for one, leaves the proposal to a later process of
    its participant, or to a person (PROTOCOL 4.4).
    """
    return reason not in _UNDECIDED


OF_THE_MOMENT: Final = frozenset({*_UNDECIDED, Reason.TIMEOUT, Reason.DUPLICATE})
"""Reasons that say nothing against the call itself: at another moment it may be approved."""


USED_AGAIN: Final = "its sender used the id again"
"""The text of a cause: the sender began something else under the same id."""


class CauseStep(msgspec.Struct, frozen=True):
    """One step of a cascade: who ended which exchange, and why."""

    by: str
    id: str
    reason: str
    text: str = ""

    def to_wire(self) -> dict[str, str]:
        """The step as it stands in ``dev.meup/cause``."""
        return {"by": self.by, "id": self.id, "reason": self.reason, "text": self.text}


class Cause(msgspec.Struct, frozen=True):
    """The cause of a cancellation.

    Attributes:
        code: The reason code it began with, for example ``no_longer_needed``.
        by: The participant that ended the exchange that is ours (the newest step).
        text: Free text that came along, if any.
        id: The exchange (proposal or request) that was ended.
        at: When we learned of it: seconds of the event loop's clock.
        chain: The steps that led here, newest first; the first one is ``by`` and ``id`` again.
    """

    code: str
    by: str = ""
    text: str = ""
    id: str = ""
    at: float = 0.0
    chain: tuple[CauseStep, ...] = ()

    def ended(self, by: str, exchange_id: str, at: float) -> Cause:
        """The cause of what ends in consequence: one step more, the same code (PROTOCOL 4.12)."""
        step = CauseStep(by, exchange_id, self.code, self.text)
        chain = () if len(self.chain) >= MAX_CHAIN else (step, *self.chain)
        return Cause(self.code, by, self.text, exchange_id, at, chain)

    @property
    def words(self) -> str:
        """The text, or the code where there is none."""
        return self.text or self.code

    def __str__(self) -> str:
        """The code, with the text behind it where there is one."""
        return f"{self.code}: {self.text}" if self.text else self.code


def read_reason(value: object) -> str:
    """The reason code in a withdraw's or reject's payload; unknown ones survive unchanged."""
    if isinstance(value, str) and value:
        return value[:MAX_REASON_CHARS]
    return Reason.OTHER


def cause_of_cancel(params: dict[str, Any], *, by: str, exchange_id: str, at: float) -> Cause:
    """The cause told by ``notifications/cancelled``: MCP's free ``reason`` and our chain.

    The chain is a stranger's word: what does not have its form is left out, and its first step
    is always what really happened, the sender ending this exchange.
    """
    said = params.get("reason")
    text = said[:MAX_REASON_CHARS] if isinstance(said, str) else ""
    steps = _steps(params.get("_meta"))
    code = steps[0].reason if steps and steps[0].reason else _code_in(text)
    if text == code or text.startswith(f"{code}: "):
        text = text[len(code) + 2 :]
    first = CauseStep(by, exchange_id, code, text)
    return Cause(code, by, text, exchange_id, at, (first, *steps[1:]))


def _code_in(text: str) -> str:
    code = text.partition(": ")[0]
    if code in _KNOWN:
        return code
    return Reason.OTHER if text else Reason.NO_LONGER_NEEDED


def _steps(meta: object) -> list[CauseStep]:
    """The chain in a cancel's ``_meta``, as far as it has its form."""
    told = cast("dict[str, object]", meta).get("dev.meup/cause") if isinstance(meta, dict) else None
    steps: list[CauseStep] = []
    for item in cast("list[object]", told)[:MAX_CHAIN] if isinstance(told, list) else ():
        if not isinstance(item, dict):
            break
        said = cast("dict[str, object]", item)
        fields = [said.get(name, "") for name in ("by", "id", "reason", "text")]
        texts = [field[:MAX_REASON_CHARS] for field in fields if isinstance(field, str)]
        if len(texts) != len(fields):
            break
        steps.append(CauseStep(*texts))
    return steps

"""Guarantees of a gateway, on which its members may build (PROTOCOL 2 and 3)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from meup_agent.protocol.payloads import as_object

WELCOME_KEY: Final = "dev.meup/guarantees"
"""The key of a welcome for its gateway's guarantees; readers may leave it."""

DIALECT: Final = "dialect"
"""In a participant of a welcome or presence: the dialect that it speaks, while it is present."""

ASIDE: Final = "dev.meup/aside"
"""In a participant of a welcome or presence, ``true``: it has connections beside alone, so that it
decides, and answers no request (PROTOCOL 3)."""

OBSERVING: Final = "observing"
"""In a welcome, ``true``: its reader is not present. As the code of a ``system/error``: its reader
sent something, and observers send nothing."""


class Guarantees(msgspec.Struct, frozen=True):
    """The guarantees of one gateway.

    Those that a gateway does not state are taken from what gateways of its dialect were seen to do,
    and at their worst where nothing is known.

    Attributes:
        identity_checked: The name in ``from`` is the one that the sender's token stands for, and
            ``system/*`` comes from the gateway alone. Where it is not, each participant
            can approve, withdraw or answer in the name of any other.
        echo: Everything that we send comes back to us, in the gateway's order: so we know what it
            took, and which of two things that crossed came first.
        resume: What we miss while we are away is sent to us when we come back.
        hidden_targets: An addressed envelope is seen by its addressees alone: a proposer does not
            see the fulfillment of its proposal, nor an onlooker who approved what.
        lists_proposals: It tells which proposals are open, and which were decided lately, to each
            that asks (:meth:`Space.list_proposals <meup_agent.Space.list_proposals>`).
    """

    identity_checked: bool = False
    echo: bool = False
    resume: bool = False
    hidden_targets: bool = False
    lists_proposals: bool = False


OURS: Final = Guarantees(identity_checked=True, echo=True, resume=True, lists_proposals=True)
"""The guarantees of the gateway of this package."""

_BY_DIALECT: Final[dict[str, Guarantees]] = {
    "meup/v0.2": Guarantees(hidden_targets=True),
    "mew/v0.4": Guarantees(echo=True),
}


def said_by(guarantees: Guarantees) -> dict[str, Any]:
    """The keys that a gateway adds to its welcomes."""
    return {WELCOME_KEY: msgspec.structs.asdict(guarantees)}


def may_evict(welcome: dict[str, Any], dialect: str) -> bool:
    """True if a gateway may throw a new connection out as an older one of ours ends (PROTOCOL 2).

    Those that were seen to do so say nothing of what they give, and were seen to send back what we
    address to ourselves. Of any other, neither is known: waiting for such an echo might lock us
    out for good.
    """
    return WELCOME_KEY not in welcome and dialect in _BY_DIALECT


def is_eviction(refusal: dict[str, Any]) -> bool:
    """True if a ``system/error`` shows that its gateway forgot us: we may do nothing at all."""
    return refusal.get("error") == "capability_violation" and refusal.get("your_capabilities") == []


def read_guarantees(welcome: dict[str, Any], dialect: str) -> Guarantees:
    """The guarantees that a first welcome and its dialect give; later ones may be forged."""
    said = welcome.get(WELCOME_KEY)
    if said is None:
        return _BY_DIALECT.get(dialect, Guarantees())
    item = as_object(said)
    return Guarantees(**{name: item.get(name) is True for name in Guarantees.__struct_fields__})

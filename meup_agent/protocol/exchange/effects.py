"""Effects: data for the session to carry out, and the names that they use."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Final, Literal, NamedTuple

import msgspec

from meup_agent.causes import Cause
from meup_agent.protocol.exchange.stream_buffer import StreamBuffer
from meup_agent.protocol.wire.control_payloads import Acknowledgement, Control
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.management_payloads import Grant, Revocation
from meup_agent.protocol.wire.outcomes import (
    Ending,
    Expiry,
    Explanation,
    Fulfillment,
    Rejection,
    Withdrawal,
)
from meup_agent.protocol.wire.payloads import Call


class Key(NamedTuple):
    """The name of one exchange of one participant."""

    # ``in``: another participant's, which we handle; ``out``: our own; ``job``: a notice for a
    # handler, which owes no answer.
    side: Literal["in", "out", "job"]
    sender: str  # the participant that began it
    id: str
    # A count, for senders that use an id again while a handler of the first one runs, as some do
    # after a restart.
    again: int = 0


class Priority(IntEnum):
    """The order in which the outbox is emptied; a lower number goes first."""

    END = 0  # withdraws, cancels and rejections: they stop work
    ANSWER = 1
    OPEN = 2  # requests and proposals
    TALK = 3  # progress, chat and all else; may be dropped


class Role(StrEnum):
    """The kinds of events that a handler is started for."""

    REQUEST = "request"
    PROPOSAL = "proposal"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    EXPLANATION = "explanation"
    EXPIRE = "expire"
    CONFLICT = "conflict"
    CHAT = "chat"
    ACKNOWLEDGE = "acknowledge"
    JOIN = "join"
    LEAVE = "leave"
    GAP = "gap"
    GRANT = "grant"
    REVOKE = "revoke"
    PAUSE = "pause"
    RESUME = "resume"
    STATUS_REQUEST = "status_request"
    STATUS = "status"
    FORGET = "forget"
    COMPACT = "compact"
    COMPACT_DONE = "compact_done"
    CLEAR = "clear"
    RESTART = "restart"
    SHUTDOWN = "shutdown"
    STREAM = "stream"
    KIND = "kind"


CONTROL_ROLES: Final = frozenset(
    {
        Role.PAUSE,
        Role.RESUME,
        Role.STATUS_REQUEST,
        Role.FORGET,
        Role.COMPACT,
        Role.CLEAR,
        Role.RESTART,
        Role.SHUTDOWN,
    }
)
"""The roles of control messages, whose handlers begin before all others, also in a pause."""


class Conflict(msgspec.Struct, frozen=True):
    """A result for a proposal that we had given up (PROTOCOL 4.13), or a copied proposal id.

    Attributes:
        proposal_id: The proposal.
        outcome: The outcome that the late answer tells; ``None``: nothing came late.
        after: The end of our own wait before it; ``None``: it is about a copied id.
        copied_by: The participant that proposed something under the id of another participant's
            proposal; empty: none did. No handler sees that proposal, and a request that names the
            id has to say whose it means.
        proposer: The participant whose proposal had the id first, where it was copied.
    """

    proposal_id: str
    outcome: Fulfillment | None = None
    after: Ending | None = None
    copied_by: str = ""
    proposer: str = ""


class Gap(msgspec.Struct, frozen=True):
    """An absence of ours of which the gateway no longer has every envelope.

    Attributes:
        since: The time at which we had read the last envelope before, in UTC; ``None``: there is
            no clock.
        seconds: The time from then until we were welcomed back.
        seq: The number of that envelope.
    """

    since: datetime | None
    seconds: float
    seq: int


Subject = (
    Rejection
    | Withdrawal
    | Expiry
    | Explanation
    | Conflict
    | Gap
    | Grant
    | Revocation
    | Acknowledgement
    | Control
    | StreamBuffer
    | None
)


class Work(msgspec.Struct, frozen=True):
    """The input of a handler."""

    role: Role
    envelope: Envelope
    subject: Subject = None  # the record that the role adds to that
    call: Call | None = None  # the call in it, of a request or a proposal
    # The handler that was found for it, as its finder knows it; handed on unread.
    handler: object = None


class CaughtUp(msgspec.Struct, frozen=True):
    """The replay of missed envelopes is over; what the gateway did not take is sent again."""

    missed: int
    seconds: float  # the time for which we were away
    gap: Gap | None  # the part that was not replayed; ``None``: nothing is missing


class Send(msgspec.Struct, frozen=True):
    """Put an envelope of ours into the outbox."""

    draft: Envelope
    priority: Priority
    again: bool = False  # it was sent before, under the same id


class Unsend(msgspec.Struct, frozen=True):
    """Take an envelope of ours out of the outbox: it has not left, or need not be sent again."""

    id: str


class Start(msgspec.Struct, frozen=True):
    """Start the handler of an exchange."""

    key: Key
    work: Work


class Cancel(msgspec.Struct, frozen=True):
    """End the scope of a handler that runs."""

    key: Key
    cause: Cause


class Wake(msgspec.Struct, frozen=True):
    """Wake the caller that waits for an exchange of ours, with its ending."""

    key: Key
    ending: Ending


class Progressed(msgspec.Struct, frozen=True):
    """Progress of an exchange of ours."""

    key: Key
    done: float
    total: float | None
    message: str


class Drop(msgspec.Struct, frozen=True):
    """Count, and log, an envelope that was left out."""

    why: str  # a short code, the counter's name
    envelope: Envelope
    expected: bool = False  # it happens among correct participants, and needs no line in the log


class Leave(msgspec.Struct, frozen=True):
    """Leave the space: a participant has shut us down, and nothing runs any more."""

    by: str
    reason: str
    id: str  # of the envelope that asked for it


Effect = Leave | Send | Unsend | Start | Cancel | Wake | Progressed | Drop | CaughtUp

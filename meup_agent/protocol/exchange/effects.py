"""What the exchange table asks its session to do, as data."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple

import msgspec

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.resume_cursor import Gap
from meup_agent.protocol.management_payloads import Grant, Revocation
from meup_agent.protocol.outcomes import Ending, Fulfillment, Rejection, Withdrawal
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.reasons import Cause


class Key(NamedTuple):
    """Names one exchange of one participant.

    Attributes:
        side: ``in``: somebody's, which we handle; ``out``: our own; ``job``: something that a
            handler is told of and that nobody waits for.
        sender: Who began it.
        id: The id of the envelope that began it.
        again: Counts up where the sender uses an id again while a handler of the first one runs,
            as some do after a restart.
    """

    side: Literal["in", "out", "job"]
    sender: str
    id: str
    again: int = 0


class Priority(IntEnum):
    """In which order the outbox is emptied; a lower number goes first."""

    END = 0
    """Withdraws, cancels and rejections: what stops work."""
    ANSWER = 1
    OPEN = 2
    """Requests and proposals."""
    TALK = 3
    """Progress, chat and all else; may be dropped."""


class Role(StrEnum):
    """What a handler is started for."""

    REQUEST = "request"
    PROPOSAL = "proposal"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    CONFLICT = "conflict"
    CHAT = "chat"
    JOIN = "join"
    LEAVE = "leave"
    GAP = "gap"
    GRANT = "grant"
    REVOKE = "revoke"
    KIND = "kind"


class Conflict(msgspec.Struct, frozen=True):
    """A result came for a proposal that we had given up (PROTOCOL 4.13), or an id was copied.

    Attributes:
        proposal_id: The proposal.
        outcome: What the late answer says; ``None``: nothing came late.
        after: How our own wait had ended; ``None``: it is about a copied id.
        copied_by: Who proposed something under the id of another participant's proposal; empty:
            nobody. No handler sees that proposal, and who names the id has to say whose it means.
        proposer: Whose proposal had the id first, where it was copied.
    """

    proposal_id: str
    outcome: Fulfillment | None = None
    after: Ending | None = None
    copied_by: str = ""
    proposer: str = ""


Subject = Rejection | Withdrawal | Conflict | Gap | Grant | Revocation | None


class Work(msgspec.Struct, frozen=True):
    """What a handler is started with.

    Attributes:
        role: Which handlers it is for.
        envelope: The envelope that it is about.
        subject: What the role adds to that.
        call: What the envelope asks for, of a request or a proposal.
        handler: The handler that was found for it, as its finder knows it; handed on unread.
    """

    role: Role
    envelope: Envelope
    subject: Subject = None
    call: Call | None = None
    handler: object = None


class CaughtUp(msgspec.Struct, frozen=True):
    """What we missed while we were away has been read; what the gateway did not take is sent again.

    Attributes:
        missed: Envelopes that came for it.
        seconds: How long we were away.
        gap: What is known of what did not come; ``None``: nothing is missing.
    """

    missed: int
    seconds: float
    gap: Gap | None


class Send(msgspec.Struct, frozen=True):
    """Put an envelope of ours into the outbox.

    Attributes:
        draft: The envelope.
        priority: Its place in the queue.
        again: It was sent before, under the same id.
    """

    draft: Envelope
    priority: Priority
    again: bool = False


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
    """Tell whoever waits for an exchange of ours how it ended."""

    key: Key
    ending: Ending


class Progressed(msgspec.Struct, frozen=True):
    """Progress of an exchange of ours."""

    key: Key
    done: float
    total: float | None
    message: str


class Drop(msgspec.Struct, frozen=True):
    """Something was left out, with the reason why: counted, and logged.

    Attributes:
        why: A short code, the counter's name.
        envelope: What was dropped.
        expected: It happens among correct participants, and needs no line in the log.
    """

    why: str
    envelope: Envelope
    expected: bool = False


Effect = Send | Unsend | Start | Cancel | Wake | Progressed | Drop | CaughtUp

"""Messages as handlers and callers see them: progress, chats, requests, parameters."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from meup_agent.errors import RequestError, printable
from meup_agent.protocol.wire.payloads import INVALID_PARAMS, PROPOSER, read_call, without_meta

if TYPE_CHECKING:
    from meup_agent.protocol.exchange import Progressed
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import Call


# --- messages as handlers and callers see them ---

log = logging.getLogger("meup_agent.client")


class Progress(msgspec.Struct, frozen=True):
    """Progress of a request.

    Attributes:
        done: How much is done; it grows.
        total: How much there is to do, where that is known.
        message: The step at hand, for a person.
    """

    done: float
    total: float | None = None
    message: str = ""


OnProgress = Callable[[Progress], None]
"""Called with each progress, by the reader of the connection: it must return at once, and
what it raises is only logged."""


def relay(on_progress: OnProgress) -> Callable[[Progressed], None]:
    """The session's callback for the caller's."""

    def report(told: Progressed) -> None:
        try:
            on_progress(Progress(told.done, told.total, told.message))
        except Exception:
            log.exception("on_progress failed")

    return report


class Chat:
    """A chat message.

    Attributes:
        id: Its id.
        sender: The participant that sent it.
        text: Its text. It is a stranger's: escape it where a person reads it.
        about: The id of the envelope that it refers to, for example a reject that it explains.
        envelope: The message as it came.
    """

    def __init__(self, envelope: Envelope) -> None:
        payload = envelope.payload_object
        text = payload.get("message", payload.get("text", ""))
        self.id = envelope.id
        self.sender = envelope.sender
        self.text = text if isinstance(text, str) else ""
        self.about = envelope.correlation[0] if envelope.correlation else None
        self.envelope = envelope

    def __repr__(self) -> str:
        """The sender, and the beginning of the text."""
        return f"<Chat of {self.sender!r}: {self.text[:60]!r}>"


class Request:
    """An MCP request of another participant.

    Attributes:
        id: The id of its envelope.
        sender: The participant that sent it.
        method: The MCP method.
        params: The method's parameters, ``_meta`` included; a copy of its own.
        proposal: The id of the proposal that it carries out; ``None`` if it carries out none.
        proposer: The participant whose proposal that is, as its sender says (PROTOCOL 4.4).
        envelope: The request as it came.
    """

    def __init__(self, envelope: Envelope, call: Call) -> None:
        proposer = call.meta.get(PROPOSER)
        self.id = envelope.id
        self.sender = envelope.sender
        self.method = call.method
        self.params: dict[str, Any] = copy.deepcopy(call.params)
        self.proposer = proposer if isinstance(proposer, str) and envelope.correlation else None
        self.proposal = envelope.correlation[0] if self.proposer is not None else None
        self.envelope = envelope

    def __repr__(self) -> str:
        """The sender and the method."""
        return f"<Request of {self.sender!r}: {self.method[:60]!r}>"


def is_own_request(envelope: Envelope) -> bool:
    """True if its sender made a request of its own accord: it carries out no proposal.

    A fulfiller sends its proposer's arguments under its own name.
    """
    return not envelope.correlation and PROPOSER not in read_call(envelope.payload).meta


# --- method params ---
# Parameters of the methods of our own, as records: written, and read strictly.

Params = TypeVar("Params", bound=msgspec.Struct)


def write_params(params: msgspec.Struct) -> dict[str, Any]:
    """Parameters as JSON values."""
    written: dict[str, Any] = msgspec.to_builtins(params)
    return written


def read_params(request: Request, form: type[Params]) -> Params:
    """The parameters of a request.

    Raises:
        RequestError: They are not of that form.
    """
    try:
        return msgspec.convert(without_meta(request.params), form)
    except msgspec.ValidationError as error:
        said = f"{request.method} cannot be answered: {printable(str(error))}; correct its params"
        raise RequestError(INVALID_PARAMS, said) from None

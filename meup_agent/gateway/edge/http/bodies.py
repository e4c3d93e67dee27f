"""The bodies of requests and answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from meup_agent.protocol.dialects import ALSO_READ, DIALECTS
from meup_agent.protocol.space.inbound import MAX_ID_CHARS, MAX_NAMED

_PRINTABLE: Final = r"[ \p{L}\p{M}\p{N}\p{P}\p{S}]"

Name = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": f"^{_PRINTABLE}{{1,{MAX_ID_CHARS}}}$"})
]
"""An id, a name or a kind: printable characters, of the classes that Unicode counts as such."""

NameOrNone = Annotated[
    str | None,
    WithJsonSchema({"type": ["string", "null"], "pattern": f"^{_PRINTABLE}{{0,{MAX_ID_CHARS}}}$"}),
]
"""The same, where it may be missing."""

Ids = Annotated[list[NameOrNone], Field(max_length=MAX_NAMED)] | NameOrNone


class _Open(BaseModel):
    """An object that may have further fields."""

    model_config = ConfigDict(extra="allow")


class NewEnvelope(_Open):
    """An envelope to send, in any dialect. What is left out of its header is filled in."""

    kind: Name = Field(examples=["chat"])
    payload: dict[str, Any]
    id: NameOrNone = Field(
        None, description="Sent again within 10 minutes, the same is not delivered twice."
    )
    protocol: Literal[*DIALECTS, *ALSO_READ, ""] | None = Field(  # type: ignore[valid-type]  # from a table
        None, description="The dialect; else the participant's."
    )
    ts: str | None = None
    sender: NameOrNone = Field(None, alias="from", description="Must be the caller.")
    to: Ids = None
    correlation_id: Ids = None
    correlationId: Ids = None  # noqa: N815 - the name on the wire
    context: str | None = None


class Accepted(_Open):
    """An envelope was taken."""

    id: str
    status: Literal["accepted", "dropped"] = Field(
        description="Accepted: it is kept, and everybody gets it. Dropped: nobody reads this kind."
    )
    seq: int | None = Field(description="Its number in the journal; none if it was dropped.")
    timestamp: str


class ErrorBody(_Open):
    """What went wrong."""

    error: str = Field(description="In a word, for programs.")
    message: str = Field(description="In a sentence, for people.")


class Envelope(_Open):
    """An envelope of the space, in the caller's dialect, with its number."""

    kind: str
    seq: int


class Messages(_Open):
    """A page of what was said in a space."""

    messages: list[Envelope]
    times: list[str] = Field(
        description="When each of them was accepted, by the gateway's clock (RFC 3339)."
    )
    next: int | None = Field(description="The `since` of the next page; none: this is the last.")
    gap: bool = Field(description="Some of what was asked for may not be known any more.")


class Participant(_Open):
    """Somebody, and what they may send."""

    id: str
    capabilities: list[dict[str, Any]]


class Me(_Open):
    """Whom a token belongs to."""

    id: str
    space: str
    dialect: str
    capabilities: list[dict[str, Any]]


class Participants(_Open):
    """Who is in a space, in the order in which they came."""

    participants: list[Participant]


class Proposals(_Open):
    """The proposals of a space, oldest first."""

    proposals: list[dict[str, Any]]
    gap: bool = Field(
        description="Some of what was said was forgotten before it could be followed."
    )


class Health(_Open):
    """How the gateway is."""

    status: Literal["ok", "unavailable"]

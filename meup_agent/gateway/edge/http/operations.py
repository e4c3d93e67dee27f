"""Every endpoint, in one table: the routes and the OpenAPI document are made of it."""

from __future__ import annotations

from typing import Final

from meup_agent.gateway.edge.handshake import MAX_SEQ_DIGITS
from meup_agent.gateway.edge.http import openapi
from meup_agent.gateway.edge.http.events import get_events
from meup_agent.gateway.edge.http.messages import MAX_PAGE, PAGE, get_messages, post_message
from meup_agent.gateway.edge.http.metrics import get_alive, get_metrics, get_ready
from meup_agent.gateway.edge.http.openapi import Operation, Parameter, Schema
from meup_agent.gateway.edge.http.space_views import get_me, get_participants, get_proposals
from meup_agent.protocol.dialects import ALSO_READ, DIALECTS
from meup_agent.protocol.lifecycle import ProposalState

_SEQ: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 10**MAX_SEQ_DIGITS - 1}
_PARTICIPANT: Final = Parameter(
    "participant", "path", "The participant, which must be the token's.", {"type": "string"}
)
_SPACE: Final = Parameter(
    "space", "path", "The space, which must be the token's.", {"type": "string"}
)
_DIALECT: Final = Parameter(
    "dialect",
    "query",
    "The dialect of the envelopes; else the participant's.",
    {"type": "string", "enum": [*DIALECTS, *ALSO_READ]},
)
_LIMIT: Final = Parameter(
    "limit",
    "query",
    f"How many at most: up to {MAX_PAGE}; without it, {PAGE}.",
    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE},
)

OPERATIONS: Final = (
    Operation(
        "POST",
        "/participants/{participant}/messages",
        "postMessage",
        "Say something, as a message by WebSocket would: the same rules hold. The answer comes"
        " when it is kept. What is left out of the header is filled in.",
        post_message,
        openapi.Accepted,
        (400, 403, 408, 409, 413, 415, 503),
        (_PARTICIPANT,),
        openapi.NewEnvelope,
    ),
    Operation(
        "GET",
        "/participants/{participant}/messages",
        "getMessages",
        "What was said in the token's space, oldest first, page by page.",
        get_messages,
        openapi.Messages,
        (400, 403, 503),
        (
            _PARTICIPANT,
            Parameter(
                "since",
                "query",
                "The `seq` of the last envelope that is known already, or a time. Without it:"
                " everything that is kept.",
                {"anyOf": [_SEQ, {"type": "string", "format": "date-time"}]},
            ),
            _LIMIT,
            _DIALECT,
        ),
    ),
    Operation(
        "GET",
        "/me",
        "getMe",
        "Whom the token belongs to, and what they may send.",
        get_me,
        openapi.Me,
    ),
    Operation(
        "GET",
        "/spaces/{space}/participants",
        "getParticipants",
        "Who is in the space, and what they may send.",
        get_participants,
        openapi.Participants,
        (403, 404, 503),
        (_SPACE,),
    ),
    Operation(
        "GET",
        "/spaces/{space}/proposals",
        "getProposals",
        "The latest proposals of the space, oldest first: their state, who decided them and why.",
        get_proposals,
        openapi.Proposals,
        (400, 403, 404, 503),
        (
            _SPACE,
            Parameter(
                "id",
                "query",
                "Only those with this id, or the beginning of it.",
                {"type": "string"},
            ),
            Parameter(
                "state",
                "query",
                "Only those in this state.",
                {"type": "string", "enum": [str(each) for each in ProposalState]},
            ),
            Parameter(
                "timeline",
                "query",
                "With every step.",
                {"type": "boolean", "default": False},
            ),
            _LIMIT,
        ),
    ),
    Operation(
        "GET",
        "/spaces/{space}/events",
        "getEvents",
        "What is said in the space, as it is said: server-sent events, whose id is the envelope's"
        " `seq`. An event of the type `gap` says that some of what was asked for is not known any"
        " more. With the header `MEUP-Observe: 1` the first event is a welcome, as an observer gets"
        " it by WebSocket, and the last one, of the type `close`, says `code` and `reason`.",
        get_events,
        "text/event-stream",
        (400, 403, 404, 503),
        (
            _SPACE,
            Parameter("Last-Event-ID", "header", "The last `seq` that is known already.", _SEQ),
            Parameter("since", "query", "The same, where no header can be sent.", _SEQ),
            Parameter(
                "MEUP-Observe",
                "header",
                "`1`: read as an observer of the space.",
                {"type": "string", "enum": ["1"]},
            ),
            Parameter(
                "follow",
                "query",
                "`false`: end when everything up to now has been read.",
                {"type": "boolean", "default": True},
            ),
            _DIALECT,
        ),
    ),
    Operation(
        "GET",
        "/healthz",
        "getAlive",
        "The process answers.",
        get_alive,
        openapi.Health,
        open=True,
    ),
    Operation(
        "GET",
        "/readyz",
        "getReady",
        "Members can join, and what they say is kept.",
        get_ready,
        openapi.Health,
        (503,),
        open=True,
    ),
    Operation(
        "GET",
        "/metrics",
        "getMetrics",
        "What the gateway has counted, for Prometheus.",
        get_metrics,
        "text/plain",
        open=True,
    ),
)

"""The demands of two specifications on a gateway, line by line, and our answer to each.

`A` is meup/v0.2, and holds for mew/v0.4, too; `C` is what mew/v0.4 changes or adds; `E` is what
neither says and interoperation has shown. docs/explanation/conformance.md is made of this; a test
says so if it is not.
"""

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["MUST", "MUST NOT", "SHOULD", "MAY", "rule"]
"""As the specification writes it; `rule`: stated as a plain fact, without such a word."""


@dataclass(frozen=True, slots=True)
class ConformanceLine:
    """One thing that is required.

    Attributes:
        id: `A.G1`: part and number.
        level: How strongly.
        section: Where the specification says it; empty where neither does.
        requires: What, in short.
        note: What there is to know of how ours keeps it.
        differs: What ours does instead, and why; empty where it keeps the line.
        shown_by: Rules whose tests show it, where it is none itself.
    """

    id: str
    level: Level
    section: str
    requires: str
    note: str = ""
    differs: str = ""
    shown_by: tuple[str, ...] = ()


A: Final = (
    ConformanceLine(
        "A.G1",
        "MUST",
        "3",
        "every frame is one JSON envelope",
        note="so is all that the gateway says; the one exception is a client's join frame, which"
        " existing clients send first",
    ),
    ConformanceLine(
        "A.G2",
        "MUST",
        "3, 6.1",
        "`protocol` is exactly the version; versions must match",
        note="what names another is refused with `invalid_envelope`; what names none gets it filled"
        " in",
    ),
    ConformanceLine(
        "A.G3",
        "rule",
        "3",
        "`id`, `ts`, `from`, `kind` and `payload` are there",
        note="all but `kind` are filled in where a sender leaves them out, and never believed where"
        " they are wrong",
    ),
    ConformanceLine(
        "A.G4",
        "rule",
        "3",
        "`to` is a list; empty or omitted means everybody",
        note="one name in place of a list is understood as a list of one",
    ),
    ConformanceLine(
        "A.G5",
        "rule",
        "3",
        "`correlation_id` is always a list",
        note="a member's single id is understood, and leaves as a list",
    ),
    ConformanceLine(
        "A.G6",
        "SHOULD",
        "3",
        "`system/error` names the envelope that caused it in `correlation_id`",
        note="wherever an id could be read",
    ),
    ConformanceLine(
        "A.G7",
        "MUST",
        "3.8.1, 5.2",
        "who connects is sent `system/welcome`: its id, its capabilities, the others",
    ),
    ConformanceLine(
        "A.G8",
        "rule",
        "3.7",
        "everybody is sent `system/presence` when somebody joins",
        note="the newcomer, too",
    ),
    ConformanceLine(
        "A.G9", "rule", "3.7", "everybody is sent `system/presence` when somebody leaves"
    ),
    ConformanceLine("A.G10", "MUST", "4.1, 7.1", "`from` is checked against who was authenticated"),
    ConformanceLine(
        "A.G11",
        "MUST",
        "4.1",
        "no participant says `system/*`",
        note="not with the capability `*` either. `system/heartbeat` and `system/register`, which"
        " existing clients send, are dropped without an error",
    ),
    ConformanceLine(
        "A.G12",
        "MUST",
        "4.2, 5.2",
        "capabilities are enforced on every message",
        note="cancelling, progress, withdrawing and answering what one was asked need none",
    ),
    ConformanceLine(
        "A.G13",
        "rule",
        "3.8.2, 8.1",
        "a violation is answered with `capability_violation`, `attempted_kind` and"
        " `your_capabilities`",
    ),
    ConformanceLine(
        "A.G14",
        "rule",
        "4.1, 4.2",
        "patterns match kind and payload: exact, wildcards, nested, regular expressions, JSONPath",
        note="of JSONPath children and descendants, no filters",
    ),
    ConformanceLine(
        "A.G15",
        "rule",
        "4.2, 8.1",
        "payloads are neither parsed nor validated",
        differs="every frame is decoded: what some reader could not decode must not be delivered,"
        " and a capability may be about the payload. What stands in a payload is not"
        " validated, but that it is an object",
    ),
    ConformanceLine(
        "A.G16",
        "rule",
        "8.1",
        "an envelope is passed on unmodified",
        note="byte for byte to whoever speaks its dialect. A member that asked to resume finds"
        " `seq` added; other dialects get it translated",
    ),
    ConformanceLine(
        "A.G17",
        "rule",
        "8.1, 3.2.1",
        "envelopes are routed by `to`; proposers can observe what becomes of a proposal",
        differs="everything goes to everybody, and `to` says whom it is for. The two halves of the"
        " line exclude each other: where targets are hidden, a proposer sees neither the"
        " fulfillment nor its result. mew/v0.4 decides as we do",
    ),
    ConformanceLine(
        "A.G18",
        "rule",
        "5.2, 8.1",
        "`GET /ws?space=<name>` with a bearer token that says who one is",
        note="any other path does; a join frame can say it, too. The token decides either way",
    ),
    ConformanceLine(
        "A.G19",
        "SHOULD",
        "3.6.1",
        "what is granted is added; the grant's message id names it",
        note="it outlives the connection, and a restart where there is a journal file",
    ),
    ConformanceLine("A.G20", "rule", "3.6.6", "only holders of `capability/grant` grant"),
    ConformanceLine(
        "A.G21",
        "rule",
        "3.6.6",
        "nobody grants what they do not possess",
        note="nor gives it to whom they invite. What cannot be shown to be covered is refused with"
        " `capability_lacking`",
    ),
    ConformanceLine(
        "A.G22",
        "SHOULD",
        "3.6.6",
        "chains of grants are tracked",
        note="and end together: nobody keeps what the one before them has no more",
    ),
    ConformanceLine(
        "A.G23",
        "rule",
        "3.6.2, 3.6.6",
        "a grant is revoked by its id, at once",
        note="what the participant has in flight on the strength of it is ended",
    ),
    ConformanceLine(
        "A.G24",
        "rule",
        "3.6.2",
        "revoking by a pattern removes all capabilities that match",
        note="those that were configured, too",
    ),
    ConformanceLine(
        "A.G25",
        "rule",
        "3.6.3",
        "the recipient acknowledges with `capability/grant-ack`",
        note="which every recipient may send; the gateway sends none for it",
    ),
    ConformanceLine(
        "A.G26",
        "SHOULD",
        "3.6.4",
        "an invitation with `email` is mailed",
        differs="no mail is sent, and the answer says `email_sent: false`: the inviter gets the"
        " token, and a gateway need not know of mail servers",
    ),
    ConformanceLine("A.G27", "rule", "3.6.4", "who is invited joins with `initial_capabilities`"),
    ConformanceLine(
        "A.G28",
        "rule",
        "3.6.5",
        "`space/kick` removes the participant",
        note="with 4403, and it stays out until it is invited again",
    ),
    ConformanceLine(
        "A.G29",
        "rule",
        "3.6.6",
        "managing a space leaves an audit trail",
        note="in the journal; `meup audit` reads it",
    ),
    ConformanceLine("A.G30", "rule", "3.3.1", "only the original proposer can withdraw"),
    ConformanceLine(
        "A.G31",
        "rule",
        "3.6",
        "spaces are isolated from each other",
        note="so are the tokens and capabilities of the same name in two spaces",
    ),
)

C: Final = (
    ConformanceLine(
        "C.W1",
        "MUST",
        "3, 6.1",
        "`protocol` is `mew/v0.4`",
        note="`mew/v0.3` is read, too, and goes out as `mew/v0.4`",
    ),
    ConformanceLine(
        "C.W2", "rule", "3, 2.1", "all messages are visible to all, whatever `to` says"
    ),
    ConformanceLine("C.W3", "MUST", "4.1", "`from` is checked"),
    ConformanceLine(
        "C.W4",
        "MUST",
        "4.1",
        "participants' `system/*` are rejected",
        note="`system/heartbeat` and `system/register` are dropped without an error",
    ),
    ConformanceLine(
        "C.W5",
        "MUST",
        "3.8.1",
        "`system/welcome` on connecting, with `active_streams` where there are any",
        note="always there, in every dialect, and in the welcome after a grant, too",
    ),
    ConformanceLine(
        "C.W6",
        "MUST",
        "3.8.1, 3.10.1",
        "all that a `stream/request` said is kept in `active_streams`, with the writers",
        note="of up to 4 KiB; what would pose as the gateway's own fields is not",
    ),
    ConformanceLine(
        "C.W7",
        "MUST",
        "3.6.1, 3.6.4",
        "logical names are resolved to the ids that participants have at run time",
        note="the token says the id, so the name that is configured is the id",
    ),
    ConformanceLine(
        "C.W8",
        "rule",
        "3.6.1",
        "a grant: checked, kept, a new `system/welcome` to the recipient, its acknowledgement",
        note="the welcome comes before the grant itself; after a revocation there is one, too",
    ),
    ConformanceLine("C.W9", "SHOULD", "3.6.1", "what is granted is added"),
    ConformanceLine(
        "C.W10",
        "rule",
        "3.6.5",
        "an invitation makes a token, tells it by `space/invite-ack`, and tells the others",
        note="with the presence event `invited`, as existing gateways do",
    ),
    ConformanceLine(
        "C.W11",
        "MUST",
        "3.6.6",
        "`space/invite-ack` and its token go to the inviter alone",
        note="they are in no journal and no log; what is kept is the token's hash",
    ),
    ConformanceLine(
        "C.W12",
        "rule",
        "3.6.6",
        "`connection_url` is `ws://<host>/participants/<id>/ws`",
        differs="the gateway's address, without that path: any path is taken, and the token says"
        " who one is. It is left out where the gateway does not know its address",
    ),
    ConformanceLine(
        "C.W13", "SHOULD", "3.6.5", "an invitation with `email` is mailed", differs="as `A.G26`"
    ),
    ConformanceLine("C.W14", "rule", "3.6.7", "`space/kick` removes the participant"),
    ConformanceLine(
        "C.W15",
        "rule",
        "3.6.8",
        "nobody grants what they lack; revoking is at once; audit; chains of grants",
    ),
    ConformanceLine(
        "C.W16",
        "SHOULD",
        "3.9.10",
        "after `participant/shutdown` envelopes are refused until it joins again",
        note="what ends or answers something passes",
    ),
    ConformanceLine(
        "C.W17",
        "MAY",
        "3.9.1",
        "a pause may be enforced",
        note="what the participant would begin is refused, never what ends or answers something",
    ),
    ConformanceLine(
        "C.W18",
        "MUST",
        "3.10.1, 3.10.2",
        "every `stream/request` is answered with `stream/open` and an id of its own",
        note="wherever it is addressed to; the request goes out first. Limits are announced by"
        " `limit_exceeded`",
    ),
    ConformanceLine(
        "C.W19",
        "MUST",
        "3.10.1",
        "a target that is not in the space: `target_not_found`",
        note="with those that are missing in `targets`",
    ),
    ConformanceLine(
        "C.W20",
        "MUST",
        "3.10.3",
        "data frames `#streamID#data` keep their boundaries",
        note="they leave as binary frames, to the targets, or else to all and to their writer;"
        " members of the other dialects get none",
    ),
    ConformanceLine(
        "C.W21",
        "MUST NOT",
        "3.10.4",
        "no frames after `stream/close`",
        note="`unauthorized_stream_write`. Its owner closes a stream, its only target, and the"
        " gateway; from others a close is refused with `unauthorized`",
    ),
    ConformanceLine(
        "C.W22",
        "rule",
        "3.10.5-7",
        "only the owner grants, revokes and transfers, with an error for each mistake and an"
        " acknowledgement for all",
        note="over a connection and over HTTP alike",
    ),
    ConformanceLine(
        "C.W23",
        "rule",
        "3.10.6",
        "who leaves may write no longer, but for the owner",
        note="an owner that is away for 30 s has its streams closed with `owner_left`",
    ),
    ConformanceLine(
        "C.W24",
        "MUST",
        "5.3",
        "what is said over HTTP is held to the same rules",
        note="header fields that are missing are filled in, but never `from` somebody else",
    ),
    ConformanceLine(
        "C.W25",
        "MUST",
        "5.3",
        "`GET` returns whole envelopes, and only those that the caller may see",
        note="everything that everybody heard, and nothing that the gateway told one member",
    ),
    ConformanceLine(
        "C.W26", "rule", "8.1", "the token of the `Authorization` header says who one is"
    ),
    ConformanceLine(
        "C.W27",
        "rule",
        "3.9.3",
        "`participant/request-status` has a hyphen",
        note="the older `participant/requestStatus` passes as a kind that means nothing",
    ),
    ConformanceLine(
        "C.W28",
        "rule",
        "",
        "existing gateways let everybody send `mcp/response`",
        differs="it is announced of everybody, and everybody may answer what they were asked, or a"
        " proposal whose call they may make: any other answer may end somebody's wait",
    ),
)

E: Final = (
    ConformanceLine(
        "E.E1",
        "rule",
        "",
        "one's own echoes are ignored",
        note="by agents",
        shown_by=("4.11.echo",),
    ),
    ConformanceLine(
        "E.E2",
        "rule",
        "",
        "a response counts only from whom the request was addressed to",
        note="for agents",
        shown_by=("5.who.response",),
    ),
    ConformanceLine(
        "E.E3",
        "rule",
        "",
        "a notification is never answered",
        note="by agents",
        shown_by=("2.answered_notification",),
    ),
    ConformanceLine(
        "E.E4",
        "rule",
        "",
        "all entries of `correlation_id` are looked at",
        note="by agents, and by the gateway where it decides who may answer or withdraw",
        shown_by=("4.4.all_correlation_ids",),
    ),
    ConformanceLine(
        "E.E5",
        "rule",
        "",
        "odd payloads are read: without `jsonrpc`, results of any kind, text for error codes",
        note="the gateway passes them on as they are",
    ),
    ConformanceLine(
        "E.E6",
        "rule",
        "",
        "a second `system/welcome` is an update of one's capabilities",
        note="for agents",
        shown_by=("2.second_welcome",),
    ),
    ConformanceLine(
        "E.E7",
        "rule",
        "",
        "after a reconnect one joins again, and open requests are dealt with",
        note="by agents",
        shown_by=("2.probe", "5.own.waiting.connection_lost"),
    ),
    ConformanceLine(
        "E.E8",
        "rule",
        "",
        "binary frames are expected, and text that begins with `#`",
        note="a binary frame that holds an envelope is one; what begins with `#` is a frame of a"
        " stream in the dialects that have streams, and `invalid_json` in the others",
    ),
    ConformanceLine(
        "E.E9",
        "rule",
        "",
        "existing gateways never ping, never time a peer out, and do not close when they stop",
        differs="ours does all three: after 20 s of silence it pings, after 20 s more it drops the"
        " connection, and it closes with 1012 when it stops",
    ),
    ConformanceLine(
        "E.E10",
        "rule",
        "",
        "existing gateways take messages of up to 100 MiB",
        differs="4 MiB, since each message is handed to every member; `too_large`, and 1009",
    ),
    ConformanceLine(
        "E.E11",
        "rule",
        "",
        "existing gateways let whoever may invite give capabilities that they do not have",
        differs="`capability_lacking`, as for a grant (`A.G21`): else who may invite may do"
        " everything, by an invitation of one's own",
    ),
    ConformanceLine(
        "E.E12",
        "rule",
        "",
        "existing gateways pass on a `stream/open` and a `stream/close` of any member",
        differs="`stream/open` comes only from the gateway, and a stream is closed by its owner or"
        " its only target: else frames are looked for that nobody may write, or a stream ends for"
        " its readers that goes on",
    ),
)

LINES: Final = (*A, *C, *E)

NOT_HERE: Final[dict[str, str]] = {}
"""Demands of the specifications that this gateway does not meet."""

REQUIRED: Final = {line.id: line.requires for line in LINES if not line.shown_by}
"""Those that have tests of their own."""

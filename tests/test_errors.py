"""The tree of exceptions: drawn as it is, and each error says what happened, to what."""

import inspect
import re

import pytest

from meup_agent import errors

CLASSES = {
    name: item
    for name, item in vars(errors).items()
    if inspect.isclass(item) and issubclass(item, Exception)  # not HandlerCancelled
}

DRAWN = re.compile(r"^ {4}(?P<indent>[ │├└─]*)(?P<name>[A-Z]\w+)", re.MULTILINE)


def test_the_tree_is_drawn_as_it_is() -> None:
    path: list[str] = []
    parents: dict[str, str] = {}
    for line in DRAWN.finditer(errors.__doc__ or ""):
        depth = len(line["indent"]) // 4
        path[depth:] = [line["name"]]
        if depth:
            parents[line["name"]] = path[depth - 1]
    assert parents == {
        name: item.__bases__[0].__name__ for name, item in CLASSES.items() if name != "MeupError"
    }


def test_every_error_lies_with_one_of_three() -> None:
    branches = (errors.UsageError, errors.PeerError, errors.ConnectionFailed)
    for name, item in CLASSES.items():
        # A middleware's refusal is a decision, and nobody's mistake.
        if name not in {"MeupError", "RejectMessage"}:
            assert sum(issubclass(item, branch) for branch in branches) == 1, name


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.HandlerDefinitionError("x"), TypeError),
        (errors.ConfigurationError("x"), ValueError),
        (errors.InvalidPattern("x"), ValueError),
        (errors.InvalidEnvelope("invalid_json", "x"), ValueError),
        (errors.ProposalExpired("p1"), TimeoutError),
        (errors.RequestTimeout("x"), TimeoutError),
    ],
)
def test_errors_that_python_has_a_word_for(error: Exception, builtin: type[Exception]) -> None:
    assert isinstance(error, builtin)


AWAY = "the gateway refused the connection with status"
FORGED = "bye\x1b[2J\nINFO forged \u202e line"
ESCAPED = "bye\\x1b[2J\\nINFO forged \\u202e line"
PROBLEMS = ({"argument": "a", "problem": "missing"},)
NO_ONE = "proposal p1 expired: no participant decided it in time"


@pytest.mark.parametrize(
    ("error", "message", "attributes"),
    [
        (errors.InvalidPattern("is bad", place="x.a"), "x.a: is bad", {"place": "x.a"}),
        (errors.InvalidPattern("is bad"), "is bad", {"place": ""}),
        (
            errors.AlreadyInProgress("p1", "b"),
            "proposal p1 is already being fulfilled by 'b'; leave it to them",
            {"proposal_id": "p1", "by": "b"},
        ),
        (
            errors.AlreadyDecided("p1", "withdrawn"),
            "proposal p1 is withdrawn; there is nothing left to decide",
            {"proposal_id": "p1", "state": "withdrawn"},
        ),
        (
            errors.InvalidEnvelope("too_deep", "it is", envelope_id="e1"),
            "it is",
            {"problem": "too_deep", "envelope_id": "e1"},
        ),
        (errors.InvalidArguments("no", [*PROBLEMS]), "no", {"problems": PROBLEMS}),
        (
            errors.RequestError(-32601, "unknown", {"x": 1}),
            "unknown (code -32601)",
            {"code": -32601, "message": "unknown", "data": {"x": 1}},
        ),
        (errors.RequestError("NOT_FOUND", "no"), "no (code NOT_FOUND)", {"data": None}),
        (errors.ToolError("no"), "no", {"result": {}}),
        (
            errors.ProposalRejected("p1", "unsafe", "b"),
            "proposal p1 was rejected by 'b': unsafe",
            {"proposal_id": "p1", "reason": "unsafe", "by": "b"},
        ),
        (
            errors.ProposalWithdrawn("p1", "other"),
            "proposal p1 was withdrawn: other",
            {"proposal_id": "p1", "reason": "other"},
        ),
        (errors.ProposalExpired("p1"), NO_ONE, {"proposal_id": "p1"}),
        (
            errors.ProposalExpired("p1", sent=False),
            "proposal p1 expired: it could not be sent in time",
            {"proposal_id": "p1"},
        ),
        (
            errors.ProposalExpired("p1", begun_by="bob"),
            "proposal p1 expired: 'bob' had begun to fulfill it, and it was not done in time",
            {"proposal_id": "p1", "begun_by": "bob"},
        ),
        (errors.Refused("busy", "no", {"x": 1}), "no", {"error": "busy", "details": {"x": 1}}),
        (
            errors.HandshakeRefused(503, 2.5, "busy"),
            f"{AWAY} 503: busy",
            {"status": 503, "retry_after": 2.5, "body": "busy"},
        ),
        (errors.HandshakeRefused(401), f"{AWAY} 401", {"retry_after": None, "body": ""}),
        (
            errors.TransportClosed(1001, "away"),
            "the connection is closed (code 1001: away)",
            {"code": 1001, "reason": "away"},
        ),
        (
            errors.TransportClosed(4403, FORGED),
            f"the connection is closed (code 4403: {ESCAPED})",
            {"reason": ESCAPED},
        ),
        (
            errors.HandshakeRefused(503, None, "a\r\nb"),
            f"{AWAY} 503: a\\r\\nb",
            {"body": "a\\r\\nb"},
        ),
        (errors.TransportClosed(1006), "the connection is closed (code 1006)", {"reason": ""}),
    ],
)
def test_an_error_says_what_happened(
    error: errors.MeupError, message: str, attributes: dict[str, object]
) -> None:
    assert str(error) == message
    assert {name: getattr(error, name) for name in attributes} == attributes

"""The page about dialects says what each of them writes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from meup_agent import Envelope
from meup_agent.protocol.dialects import ALSO_READ
from tests.programs import ROOT
from tests.wire import DEFAULT_DIALECT, DIALECTS, draft, encode, kinds, payloads

PAGE = (ROOT / "docs" / "reference" / "dialects.md").read_text(encoding="utf-8")

CALL = {"name": "write_file", "arguments": {"path": "a"}}
PAYLOADS: dict[str, dict[str, Any]] = {
    kinds.MCP_REQUEST: payloads.request("tools/call", CALL, "e1"),
    kinds.MCP_RESPONSE: payloads.result("e0", {"content": []}),
    kinds.MCP_PROPOSAL: payloads.proposal("tools/call", CALL),
    kinds.MCP_WITHDRAW: {"reason": "other"},
    kinds.MCP_REJECT: {"reason": "other"},
    kinds.CHAT: {"message": "hi"},
}


def written(kind: str, dialect: str, *correlation: str) -> dict[str, Any]:
    """The frame of an envelope, as JSON values."""
    envelope: Envelope = draft(
        kind, PAYLOADS.get(kind, {}), id="e1", sender="alice", correlation=correlation
    )
    frame: dict[str, Any] = json.loads(encode(envelope, dialect))
    return frame


ALL_FIELDS = len(written(kinds.CHAT, "mew/v0.4", "e0"))


def kind_in(kind: str) -> Callable[[str], str]:
    about = ("e0",) if kind in kinds.CORRELATED else ()
    return lambda dialect: f"`{written(kind, dialect, *about)['kind']}`"


def where_about(kind: str) -> Callable[[str], str]:
    """The field in which a dialect says what an envelope refers to."""

    def found(dialect: str) -> str:
        frame = written(kind, dialect, "e0")
        for name, value in frame.items():
            if value == "e0":
                return f"`{name}`"
            if value == ["e0"]:
                return f"`{name}`, a list"
        (name,) = (name for name, value in frame["payload"].items() if value == "e0")
        return f"`{name}` in the payload"

    return found


def chat_payload(dialect: str) -> str:
    return ", ".join(f"`{name}`" for name in written(kinds.CHAT, dialect)["payload"])


def several(dialect: str) -> str:
    """The field in which a dialect says the others of several that an envelope refers to."""
    frame = written(kinds.CHAT, dialect, "e0", "e9")
    (name,) = (name for name, value in frame.items() if value == ["e0", "e9"])
    return f"`{name}`, a list" if len(frame) == ALL_FIELDS else f"`{name}` beside it, a list"


WORDS: dict[str, Callable[[str], str]] = {
    "a request or notification": kind_in(kinds.MCP_REQUEST),
    "a response": kind_in(kinds.MCP_RESPONSE),
    "a proposal": kind_in(kinds.MCP_PROPOSAL),
    "a withdrawal": kind_in(kinds.MCP_WITHDRAW),
    "a rejection": kind_in(kinds.MCP_REJECT),
    "a chat": kind_in(kinds.CHAT),
    "the gateway's welcome": kind_in(kinds.SYSTEM_WELCOME),
    "who comes and goes": kind_in(kinds.SYSTEM_PRESENCE),
    "the gateway's refusal": kind_in(kinds.SYSTEM_ERROR),
}

FORMS: dict[str, Callable[[str], str]] = {
    "a request says which proposal it fulfills in": where_about(kinds.MCP_REQUEST),
    "a response says which request it answers in": where_about(kinds.MCP_RESPONSE),
    "a withdrawal or rejection names the proposal in": where_about(kinds.MCP_WITHDRAW),
    "a message about several others names them in": several,
    "a chat's text stands in": chat_payload,
}


@pytest.mark.parametrize("what", [*WORDS, *FORMS])
def test_row_says_what_is_written(what: str) -> None:
    cells = [(WORDS | FORMS)[what](dialect) for dialect in DIALECTS]
    expected = f"| {what} | {' | '.join(cells)} |"
    assert expected in PAGE, f"docs/reference/dialects.md must contain:\n\n{expected}\n"


def test_columns_are_the_dialects() -> None:
    assert PAGE.count(f"| {' | '.join(f'`{name}`' for name in DIALECTS)} |") == 2


def test_default_and_older_names_are_said() -> None:
    assert f"`{DEFAULT_DIALECT}` is this package's own" in PAGE
    for older, newer in ALSO_READ.items():
        assert f"`{older}` is read as `{newer}`" in PAGE


def test_withdrawal_and_rejection_have_one_form() -> None:
    """The page tells of both in one row."""
    for dialect in DIALECTS:
        of_rejection = where_about(kinds.MCP_REJECT)(dialect)
        assert of_rejection == where_about(kinds.MCP_WITHDRAW)(dialect)

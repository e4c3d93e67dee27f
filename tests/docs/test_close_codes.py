"""The page about close codes says what an agent does, and has every code that a gateway uses."""

import re

import anyio
import pytest

from meup_agent import Backoff, Settings, errors
from meup_agent.errors import (
    HandshakeRefused,
    NoSuchSpace,
    SessionEnded,
    TransportClosed,
    TransportError,
)
from meup_agent.gateway import auth, frame_queue, runtime
from meup_agent.gateway.edge import listener
from meup_agent.session import ConnectedSession
from meup_agent.session.connection import _ENDS, RESTORE_TOKEN_ONCE
from meup_agent.transport import base
from tests.patience import PATIENCE
from tests.programs import ROOT
from tests.session.gate import Gate, Recorder
from tests.spaces import TAKEN_OVER

PAGE = (ROOT / "docs" / "reference" / "close-codes.md").read_text(encoding="utf-8")

SAID = {
    int(code): does
    for codes, does in re.findall(r"^\| ([\d, ]+) \|.*\| (.*?) \|$", PAGE, re.MULTILINE)
    for code in codes.split(", ")
}
"""Code → what the page says that the agent does."""

STATUSES = {
    auth.BAD_REQUEST,
    auth.UNAUTHORIZED,
    auth.FORBIDDEN,
    auth.NOT_FOUND,
    auth.TOO_MANY,
    auth.UNAVAILABLE,
}
CODES = {
    *(auth.NotAdmitted(status, "").close_code for status in STATUSES),
    listener.PROTOCOL_ERROR,
    base.TOO_BIG,
    TAKEN_OVER,
    frame_queue.TOO_SLOW,
    runtime.RESTARTING,
}


def failure(code: int) -> TransportError:
    return HandshakeRefused(code) if code < 1000 else TransportClosed(code)


@pytest.mark.parametrize("code", SAID)
@pytest.mark.parametrize("asked", [False, True], ids=["fixed token", "token callable"])
async def test_agent_does_what_the_page_says(code: int, asked: bool) -> None:
    gate = Gate()
    gate.refusals.append(failure(code))
    gate.always = failure(404)  # the end of any further attempt, so that there is one
    stops = re.search(r"stops with \[`(\w+)`\]", SAID[code])
    once_more = asked and "asks a token callable once more" in SAID[code]
    expected = getattr(errors, stops[1]) if stops and not once_more else NoSuchSpace
    session = ConnectedSession(
        gate.connector(),
        token=(lambda: "secret") if asked else "secret",
        handlers=Recorder(),
        settings=Settings(backoff=Backoff(first=0, longest=0), first_welcome=None),
        where="ws://gate",
    )
    with anyio.fail_after(PATIENCE), pytest.raises(SessionEnded) as ended:
        async with session:
            pytest.fail("nobody has welcomed us")
    assert type(ended.value) is expected
    assert len(gate.attempts) == (1 if stops and not once_more else 2)


def test_every_code_of_the_code_is_on_the_page() -> None:
    known = {*_ENDS, *RESTORE_TOKEN_ONCE, base.ABNORMAL, base.INVALID, base.TOO_BIG}
    assert (known | STATUSES | CODES) - set(SAID) == set()


def test_what_this_gateway_uses_is_said() -> None:
    ours = re.search(r"gateway uses ([\d, and]+) in the handshake, and ([\d,\s and]+) after", PAGE)
    assert ours is not None
    statuses, codes = ({int(code) for code in re.findall(r"\d+", said)} for said in ours.groups())
    assert (statuses, codes) == (STATUSES, CODES)


def test_pauses_are_those_of_the_backoff() -> None:
    backoff = Backoff()
    pauses = (
        f"at most {backoff.first:g} seconds at first, doubling up to {backoff.longest:g} seconds"
    )
    assert pauses in " ".join(PAGE.split())

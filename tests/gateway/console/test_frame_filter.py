"""Frames that people's connections are spared: what no inbox and no seat needs."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent
from meup_agent.gateway.console.frame_filter import MAX_PLAIN_CALLS, FrameFilter
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import DEFAULT_DIALECT, encode
from meup_agent.protocol.envelope import draft
from tests.gateway.console.conftest import Site
from tests.interaction.people import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

TOOL = {"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": {"name": "add"}}
CAME = {"event": "join", "participant": {"id": "bot", "capabilities": []}}
VOTE = {**TOOL, "params": {"name": "vote"}}
CANCEL = {"jsonrpc": "2.0", "method": kinds.CANCELLED, "params": {"requestId": "r"}}
PROGRESS = {"jsonrpc": "2.0", "method": kinds.PROGRESS, "params": {"progressToken": "r"}}
RESULT: dict[str, Any] = {"jsonrpc": "2.0", "id": "r", "result": {}}


def frame(
    kind: str,
    payload: dict[str, Any] | None = None,
    sender: str = "bot",
    to: tuple[str, ...] = ("tools",),
    id: str = "r",
    about: tuple[str, ...] = (),
) -> bytes:
    said = draft(kind, payload or {}, id=id, sender=sender, to=to, correlation=about)
    return encode(said, DEFAULT_DIALECT)


def spared(found: FrameFilter, said: bytes) -> tuple[bool, bool]:
    """True where the frame is kept from all inboxes, and from all seats."""
    return found.for_inboxes(said) is None, found.for_seats(said) is None


@pytest.mark.parametrize(
    ("said", "inboxes", "seats"),
    [
        (frame(kinds.CHAT, {"text": "hi"}, to=()), True, True),
        (frame(kinds.CHAT, {"text": "since"}, about=("p",)), False, True),
        (frame("reasoning/thought", to=()), True, True),
        (frame(kinds.MCP_PROPOSAL, TOOL), False, True),
        (frame(kinds.MCP_WITHDRAW, about=("p",)), False, True),
        (frame(kinds.MCP_REJECT, about=("p",)), False, True),
        (frame(kinds.MCP_RENEW, about=("p",)), False, True),
        (frame(kinds.MCP_REQUEST, TOOL), True, True),
        (frame(kinds.MCP_REQUEST, PROGRESS), True, True),
        (frame(kinds.MCP_REQUEST, TOOL, about=("p",)), False, True),
        (frame(kinds.MCP_REQUEST, VOTE), False, True),
        (frame(kinds.MCP_REQUEST, CANCEL), False, True),
        (frame(kinds.MCP_REQUEST, TOOL, to=()), False, False),
        (frame(kinds.MCP_REQUEST, TOOL, to=("you",)), False, False),
        (frame(kinds.MCP_REQUEST, TOOL, sender="you"), False, False),
        (frame(kinds.MCP_RESPONSE, RESULT, to=("bot",), about=("unknown",)), False, True),
        (frame(kinds.SYSTEM_PRESENCE, sender=kinds.GATEWAY, to=()), False, False),
        (frame(kinds.SYSTEM_PRESENCE, CAME, kinds.GATEWAY, to=()), False, True),
        (frame("capability/grant"), False, False),
        (frame("made-up/kind"), False, False),
        (b"no envelope", False, False),
    ],
)
def test_frames_are_spared_by_what_they_change(said: bytes, inboxes: bool, seats: bool) -> None:
    found = FrameFilter()
    with found.serving("you", observes=False):
        assert spared(found, said) == (inboxes, seats)


def test_response_goes_where_its_request_went() -> None:
    found = FrameFilter()
    answer = frame(kinds.MCP_RESPONSE, RESULT, "tools", ("bot",), "a", ("r",))
    with found.serving("you", observes=True), found.serving("other", observes=True):
        found.for_inboxes(frame(kinds.MCP_REQUEST, TOOL))
        assert found.for_inboxes(answer) is None
        # The same id, now of a request that fulfills a proposal.
        found.for_inboxes(frame(kinds.MCP_REQUEST, TOOL, about=("p",)))
        assert found.for_inboxes(answer) == answer
        # A person's own call concerns that person alone.
        found.for_inboxes(frame(kinds.MCP_REQUEST, TOOL, "you"))
        mine = frame(kinds.MCP_RESPONSE, RESULT, "tools", ("you",), "b", ("r",))
        assert found.is_for("you", mine, observes=True)
        assert not found.is_for("other", mine, observes=True)


def test_cancel_goes_where_its_request_went() -> None:
    found = FrameFilter()
    cancel = frame(kinds.MCP_REQUEST, CANCEL, id="c")
    told = {**CANCEL, "params": {"requestId": "r", "_meta": {payloads.BEGUN_BY: "bot"}}}
    by_gateway = frame(kinds.MCP_REQUEST, told, kinds.GATEWAY, id="d")
    with found.serving("you", observes=True):
        assert found.for_inboxes(cancel) == cancel
        found.for_inboxes(frame(kinds.MCP_REQUEST, TOOL))
        assert found.for_inboxes(cancel) is None
        assert found.for_inboxes(by_gateway) is None
        # Of another caller's request under the same id nothing is known.
        theirs = frame(kinds.MCP_REQUEST, CANCEL, "caller", id="c")
        assert found.for_inboxes(theirs) == theirs
        # The same id, now of a request that fulfills a proposal.
        found.for_inboxes(frame(kinds.MCP_REQUEST, TOOL, about=("p",)))
        assert found.for_inboxes(cancel) == cancel
        assert found.for_inboxes(by_gateway) == by_gateway


def test_calls_that_are_remembered_are_bounded() -> None:
    found = FrameFilter()
    for number in range(MAX_PLAIN_CALLS + 1):
        found.for_inboxes(frame(kinds.MCP_REQUEST, TOOL, id=f"r{number}"))
    first = frame(kinds.MCP_RESPONSE, RESULT, "tools", ("bot",), "a", ("r0",))
    last = frame(kinds.MCP_RESPONSE, RESULT, "tools", ("bot",), "b", (f"r{MAX_PLAIN_CALLS}",))
    assert found.for_inboxes(first) == first
    with found.serving("you", observes=True):
        assert found.for_inboxes(last) is None


async def test_inbox_follows_a_fulfillment_between_others(site: Site) -> None:
    await site.tools()
    proposer = await site.join("proposer")
    other = await site.join("other", Agent("other"))
    browser = await site.browser("you")
    with anyio.fail_after(PATIENCE):
        assert "Nothing" in (await browser.get("/inbox")).text
        handle = await site.propose(proposer)
        await until(lambda: any(each.id == handle.id for each in other.proposals))

        async def shown() -> str:
            return (await browser.get("/inbox")).text

        while "write_file" not in await shown():
            await anyio.lowlevel.checkpoint()
        (record,) = other.proposals
        await other.proposal(record.envelope).fulfill()
        while "write_file" in await shown():
            await anyio.lowlevel.checkpoint()

"""Frames that people's connections are spared: what no inbox needs."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Envelope
from meup_agent.gateway.console.frame_filter import MAX_PLAIN_CALLS, FrameFilter
from tests.gateway.console.conftest import Site
from tests.interaction.people import until
from tests.patience import PATIENCE
from tests.wire import DEFAULT_DIALECT, draft, encode, kinds, payloads

pytestmark = pytest.mark.anyio

TOOL = {"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": {"name": "add"}}
VOTE = {**TOOL, "method": "dev.meup/vote", "params": {"proposal": "p"}}
VOTE_TOOL = {**TOOL, "params": {"name": "vote", "arguments": {"method": "dev.meup/vote"}}}
CANCEL = {"jsonrpc": "2.0", "method": kinds.CANCELLED, "params": {"requestId": "r"}}
PROGRESS = {"jsonrpc": "2.0", "method": kinds.PROGRESS, "params": {"progressToken": "r"}}
RESULT: dict[str, Any] = {"jsonrpc": "2.0", "id": "r", "result": {}}


def envelope(
    kind: str,
    payload: dict[str, Any] | None = None,
    sender: str = "bot",
    to: tuple[str, ...] = ("tools",),
    id: str = "r",
    about: tuple[str, ...] = (),
) -> Envelope:
    return draft(kind, payload or {}, id=id, sender=sender, to=to, correlation=about)


@pytest.mark.parametrize(
    ("said", "spared"),
    [
        (envelope(kinds.CHAT, {"text": "hi"}, to=()), True),
        (envelope(kinds.CHAT, {"text": "since"}, about=("p",)), False),
        (envelope("reasoning/thought", to=()), True),
        (envelope(kinds.MCP_PROPOSAL, TOOL), False),
        (envelope(kinds.MCP_WITHDRAW, about=("p",)), False),
        (envelope(kinds.MCP_REJECT, about=("p",)), False),
        (envelope(kinds.MCP_RENEW, about=("p",)), False),
        (envelope(kinds.MCP_REQUEST, TOOL), True),
        (envelope(kinds.MCP_REQUEST, PROGRESS), True),
        (envelope(kinds.MCP_REQUEST, TOOL, about=("p",)), False),
        (envelope(kinds.MCP_REQUEST, VOTE), False),
        (envelope(kinds.MCP_REQUEST, VOTE_TOOL), True),
        (envelope(kinds.MCP_REQUEST, CANCEL), False),
        (envelope(kinds.MCP_REQUEST, TOOL, to=()), False),
        (envelope(kinds.MCP_REQUEST, TOOL, to=("you",)), False),
        (envelope(kinds.MCP_REQUEST, TOOL, sender="you"), False),
        (envelope(kinds.MCP_RESPONSE, RESULT, to=("bot",), about=("unknown",)), False),
        (envelope(kinds.SYSTEM_PRESENCE, sender=kinds.GATEWAY, to=()), False),
        (envelope("capability/grant"), False),
        (envelope("made-up/kind"), False),
    ],
)
def test_frames_are_spared_by_what_they_change(said: Envelope, spared: bool) -> None:
    found = FrameFilter()
    with found.serving("you"):
        assert found.is_for_inboxes(said) is not spared


def test_response_goes_where_its_request_went() -> None:
    found = FrameFilter()
    answer = envelope(kinds.MCP_RESPONSE, RESULT, "tools", ("bot",), "a", ("r",))
    with found.serving("you"), found.serving("other"):
        found.is_for_inboxes(envelope(kinds.MCP_REQUEST, TOOL))
        assert not found.is_for_inboxes(answer)
        # The same id, now of a request that fulfills a proposal.
        found.is_for_inboxes(envelope(kinds.MCP_REQUEST, TOOL, about=("p",)))
        assert found.is_for_inboxes(answer)
        # A person's own call concerns that person alone.
        found.is_for_inboxes(envelope(kinds.MCP_REQUEST, TOOL, "you"))
        mine = envelope(kinds.MCP_RESPONSE, RESULT, "tools", ("you",), "b", ("r",))
        assert found.is_for_inboxes(mine)
        frame = found.pack(encode(mine, DEFAULT_DIALECT))
        assert found.is_for("you", frame)
        assert not found.is_for("other", frame)


def test_cancel_goes_where_its_request_went() -> None:
    found = FrameFilter()
    cancel = envelope(kinds.MCP_REQUEST, CANCEL, id="c")
    told = {**CANCEL, "params": {"requestId": "r", "_meta": {payloads.BEGUN_BY: "bot"}}}
    by_gateway = envelope(kinds.MCP_REQUEST, told, kinds.GATEWAY, id="d")
    with found.serving("you"):
        assert found.is_for_inboxes(cancel)
        found.is_for_inboxes(envelope(kinds.MCP_REQUEST, TOOL))
        assert not found.is_for_inboxes(cancel)
        assert not found.is_for_inboxes(by_gateway)
        # Of another caller's request under the same id nothing is known.
        theirs = envelope(kinds.MCP_REQUEST, CANCEL, "caller", id="c")
        assert found.is_for_inboxes(theirs)
        # The same id, now of a request that fulfills a proposal.
        found.is_for_inboxes(envelope(kinds.MCP_REQUEST, TOOL, about=("p",)))
        assert found.is_for_inboxes(cancel)
        assert found.is_for_inboxes(by_gateway)


def test_frame_that_has_waited_goes_where_it_would_have_gone() -> None:
    found = FrameFilter()
    with found.serving("you"):
        mine = envelope(kinds.MCP_REQUEST, TOOL, "you")
        found.is_for_inboxes(mine)
        waited = found.pack(encode(mine, DEFAULT_DIALECT))
        found.is_for_inboxes(envelope(kinds.SYSTEM_PRESENCE, sender=kinds.GATEWAY, to=()))
        assert found.is_for("you", waited)
        assert not found.is_for("other", waited)
        assert found.is_for("other", b"no envelope")


def test_calls_that_are_remembered_are_bounded() -> None:
    found = FrameFilter()
    for number in range(MAX_PLAIN_CALLS + 1):
        found.is_for_inboxes(envelope(kinds.MCP_REQUEST, TOOL, id=f"r{number}"))
    first = envelope(kinds.MCP_RESPONSE, RESULT, "tools", ("bot",), "a", ("r0",))
    last = envelope(kinds.MCP_RESPONSE, RESULT, "tools", ("bot",), "b", (f"r{MAX_PLAIN_CALLS}",))
    assert found.is_for_inboxes(first)
    with found.serving("you"):
        assert not found.is_for_inboxes(last)


async def test_inbox_follows_a_fulfillment_between_others(site: Site) -> None:
    proposer = await site.proposer()
    other = await site.join("other", Agent("other"))
    browser = await site.browser("you")
    with anyio.fail_after(PATIENCE):
        await browser.page("/inbox", "Nothing")
        handle = await site.propose(proposer)
        await until(lambda: any(each.id == handle.id for each in other.proposals))
        await browser.page("/inbox", "write_file")
        (record,) = other.proposals
        await other.proposal(record.envelope).fulfill()
        await browser.page(gone="write_file")

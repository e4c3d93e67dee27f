"""The call that a question of a server belongs to."""

from types import SimpleNamespace
from typing import Any

import pytest

from meup_agent.errors import RequestError
from meup_agent.mcp.bridge.questions import RunningCall, call_asked_about, current_call


def running(method: str, sender: str) -> RunningCall:
    """A call, of which nothing is used but its method and its caller."""
    request: Any = SimpleNamespace(method=method, sender=sender, proposer=None)
    context: Any = None
    return RunningCall("server", request, context)


def test_without_a_stream_only_one_callers_calls_are_certain() -> None:
    calls = dict[RunningCall, None]()
    with pytest.raises(RequestError, match="only ask while it works on a call"):
        call_asked_about(calls)
    one, again = running("tools/call", "ann"), running("tools/call", "ann")
    two, listing = running("prompts/get", "bob"), running("tools/list", "eve")
    calls |= {listing: None, one: None}
    assert call_asked_about(calls) is one
    calls[again] = None
    assert call_asked_about(calls) is again
    calls[two] = None
    with pytest.raises(RequestError, match="calls of several participants run"):
        call_asked_about(calls)
    del calls[one], calls[again]
    assert call_asked_about(calls) is two


def test_a_late_question_on_the_stream_of_a_call_goes_to_no_other_call() -> None:
    calls = set[RunningCall]()
    ended, other = running("tools/call", "ann"), running("tools/call", "ann")
    calls.add(ended)
    calls.add(other)
    token = current_call.set(ended)
    try:
        assert call_asked_about(calls) is ended
        calls.remove(ended)
        with pytest.raises(RequestError, match="the call that it belonged to has ended"):
            call_asked_about(calls)
    finally:
        current_call.reset(token)


@pytest.mark.rule("3.beside.own")
@pytest.mark.parametrize("proposal", [None, "p1"])
async def test_a_server_names_no_exchange_in_what_it_asks(proposal: str | None) -> None:
    asked: list[dict[str, Any]] = []

    async def ask(to: str, method: str, params: dict[str, Any], *, timeout: float | None) -> Any:
        asked.append(params)
        return {"action": "decline"}

    request: Any = SimpleNamespace(
        method="tools/call", id="r1", sender="ann", proposer=None, proposal=proposal
    )
    context: Any = SimpleNamespace(space=SimpleNamespace(request=ask))
    meta = {"dev.meup/proposal": "another", "dev.meup/request": "another", "x.y/z": 1}
    async with (call := RunningCall("server", request, context)).running():
        await call.ask("elicitation/create", {"message": "Which?", "_meta": meta})
    ours = {"dev.meup/request": "r1"} | ({} if proposal is None else {"dev.meup/proposal": "p1"})
    assert asked[0]["_meta"] == {"x.y/z": 1, **ours}

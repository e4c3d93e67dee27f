"""Outcomes: a response gives its reader the same, wherever it comes from."""

from typing import Any

import pytest

from meup_agent import Fulfillment
from meup_agent.errors import RequestError, ToolError
from meup_agent.protocol.outcomes import value_of
from tests.wire import WRAPPED, Responded

TEXT = {"type": "text", "text": "wrote a"}

VALUES: dict[str, tuple[Any, Any, list[Any]]] = {
    "content": ({"content": [TEXT]}, [TEXT], [TEXT]),
    "structure": ({"content": [TEXT], "structuredContent": {"n": 1}}, {"n": 1}, [TEXT]),
    "wrapped": (
        {"content": [], "structuredContent": {"result": 3}, "_meta": {WRAPPED: True}},
        *(3, []),
    ),
    "bare": (5, 5, []),
    "another method's": ({"prompts": []}, {"prompts": []}, []),
    "none": (None, None, []),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_fulfillment_has_the_value_that_call_returns(case: str) -> None:
    result, value, content = VALUES[case]
    outcome = Fulfillment("p1", "bob", "files", result=result)
    assert outcome.value == value == value_of(Responded("files", result=result))
    assert outcome.content == content
    assert not outcome.is_error


def test_the_value_of_a_tool_that_failed_is_its_error() -> None:
    outcome = Fulfillment("p1", "bob", "files", result={"isError": True, "content": [TEXT]})
    assert outcome.is_error
    assert outcome.content == [TEXT]
    with pytest.raises(ToolError, match="wrote a"):
        _ = outcome.value


def test_the_value_of_an_error_response_is_its_error() -> None:
    outcome = Fulfillment("p1", "bob", "files", error={"code": -32601, "message": "no such tool"})
    assert outcome.is_error
    assert outcome.content == []
    with pytest.raises(RequestError, match="no such tool") as caught:
        _ = outcome.value
    assert caught.value.by == "files"

"""How payloads are read."""

from __future__ import annotations

from typing import Any

import pytest

from meup_agent.protocol.payloads import read_call, read_proposal

DELETE = {"method": "tools/call", "params": {"name": "delete_all"}}


def test_a_proposal_is_read_with_and_without_its_wrapper() -> None:
    assert read_proposal(DELETE).name == read_proposal({"proposal": DELETE}).name == "delete_all"


@pytest.mark.rule("3.capability.as_read")
@pytest.mark.parametrize(
    "payload",
    [
        {"proposal": DELETE, "params": {"name": "read_file"}},
        {"proposal": {"proposal": DELETE}},
        {"proposal": "delete_all"},
        {},
    ],
)
def test_what_is_no_wrapper_is_not_looked_into(payload: dict[str, Any]) -> None:
    assert read_proposal(payload).method == ""


@pytest.mark.rule("3.capability.as_read")
def test_a_request_has_no_wrapper() -> None:
    assert read_call({"proposal": DELETE}).method == ""

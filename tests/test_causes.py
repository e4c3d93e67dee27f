"""Reasons, and the causes they grow into (PROTOCOL 4.3, 4.12, 6)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Reason
from meup_agent.causes import MAX_REASON_CHARS, cause_of_cancel, read_reason
from meup_agent.protocol.wire.payloads import cancelled
from meup_agent.types import Cause, CauseStep
from tests.wire import MAX_CHAIN

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def told(params: dict[str, Any]) -> Cause:
    return cause_of_cancel(params, by="b", exchange_id="r1", at=7.0)


def chain(*codes: str) -> dict[str, Any]:
    links = [{"by": f"p{n}", "id": f"x{n}", "reason": code} for n, code in enumerate(codes)]
    return {"dev.meup/cause": links}


def test_the_codes_are_those_of_the_protocol() -> None:
    assert " ".join(Reason) == (
        "disagree inappropriate unsafe busy incapable policy duplicate invalid timeout "
        "resource_limit no_longer_needed other revoked"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((each, each) for each in [*Reason, "lunch", "No longer needed", "x" * MAX_REASON_CHARS]),
        *((each, Reason.OTHER) for each in [None, "", 5, ["busy"], {"reason": "busy"}, True]),
    ],
)
def test_a_reason_survives_unchanged_and_no_reason_is_other(value: Any, reason: str) -> None:
    assert read_reason(value) == reason


def test_a_reason_is_bounded() -> None:
    assert read_reason("x" * 1_000_000) == "x" * MAX_REASON_CHARS
    assert len(told({"reason": "x" * 1_000_000}).text) == MAX_REASON_CHARS


@pytest.mark.parametrize(
    ("params", "code", "text"),
    [
        ({"reason": "timeout"}, "timeout", ""),
        ({"reason": "unsafe: leaves the folder"}, "unsafe", "leaves the folder"),
        ({"reason": "unsafe: a: b"}, "unsafe", "a: b"),
        ({"reason": "User requested cancellation"}, "other", "User requested cancellation"),
        ({"reason": "lunch: back at one"}, "other", "lunch: back at one"),
        ({"reason": "unsafely"}, "other", "unsafely"),
        ({"reason": ""}, "no_longer_needed", ""),
        ({"reason": None}, "no_longer_needed", ""),
        ({"reason": 5}, "no_longer_needed", ""),
        ({}, "no_longer_needed", ""),
    ],
)
def test_a_cancel_tells_its_code_in_the_free_reason(
    params: dict[str, Any], code: str, text: str
) -> None:
    cause = told({"requestId": "r1", **params})
    assert cause == Cause(code, "b", text, "r1", 7.0, (CauseStep("b", "r1", code, text),))


def test_a_chain_is_kept_behind_what_really_happened() -> None:
    cause = told({"reason": "policy: no", "_meta": chain("policy", "policy", "policy")})
    assert (cause.code, cause.text, cause.by, cause.id) == ("policy", "no", "b", "r1")
    assert cause.chain == (
        CauseStep("b", "r1", "policy", "no"),
        CauseStep("p1", "x1", "policy"),
        CauseStep("p2", "x2", "policy"),
    )


@pytest.mark.parametrize(
    ("reason", "code", "text"),
    [
        ("lunch: back at one", "lunch", "back at one"),
        ("lunch", "lunch", ""),
        ("back at one", "lunch", "back at one"),
        (None, "lunch", ""),
    ],
)
def test_a_code_that_nobody_knows_comes_along_in_the_chain(
    reason: Any, code: str, text: str
) -> None:
    cause = told({"reason": reason, "_meta": chain("lunch")})
    assert (cause.code, cause.text) == (code, text)


@pytest.mark.parametrize(
    "meta",
    [
        None,
        "cause",
        {},
        {"dev.meup/cause": "x"},
        {"dev.meup/cause": {}},
        {"dev.meup/cause": [5]},
        {"dev.meup/cause": [{"by": 5}]},
        {"dev.meup/cause": [{"reason": None}]},
        {"dev.meup/cause": [{}]},
        {"dev.meup/cause": [{"reason": ""}]},
    ],
)
def test_a_chain_without_its_form_is_left_out(meta: Any) -> None:
    cause = told({"reason": "busy", "_meta": meta})
    assert (cause.code, cause.chain) == ("busy", (CauseStep("b", "r1", "busy"),))


def test_links_up_to_the_first_bad_one_are_kept() -> None:
    meta = {"dev.meup/cause": [*chain("busy", "busy")["dev.meup/cause"], 5, {"by": "never"}]}
    assert [link.by for link in told({"_meta": meta}).chain] == ["b", "p1"]


def test_a_chain_is_bounded() -> None:
    meta = chain(*["busy"] * 100)
    meta["dev.meup/cause"][1]["text"] = "x" * 1_000_000
    links = told({"_meta": meta}).chain
    assert len(links) == MAX_CHAIN
    assert len(links[1].text) == MAX_REASON_CHARS


@given(st.dictionaries(st.sampled_from(["reason", "_meta"]) | st.text(), JSON, max_size=4))
def test_any_params_tell_a_cause(params: dict[str, Any]) -> None:
    cause = told(params)
    assert cause.code
    assert cause.chain[0] == CauseStep("b", "r1", cause.code, cause.text)


def test_a_cascade_keeps_its_code_and_grows_its_chain() -> None:
    first = Cause("unsafe", "a", "because", "p1", 1.0)
    second = first.ended("b", "r1", 2.0)
    third = second.ended("c", "r2", 3.0)
    assert third == Cause(
        "unsafe",
        "c",
        "because",
        "r2",
        3.0,
        (CauseStep("c", "r2", "unsafe", "because"), CauseStep("b", "r1", "unsafe", "because")),
    )


def test_a_cascade_that_is_too_long_goes_on_without_its_chain() -> None:
    cause = Cause("policy")
    for hop in range(MAX_CHAIN):
        cause = cause.ended(f"p{hop}", f"x{hop}", float(hop))
    assert len(cause.chain) == MAX_CHAIN
    after = cause.ended("last", "x", 9.0)
    assert (after.code, after.by, after.chain) == ("policy", "last", ())


@given(st.sampled_from(list(Reason)) | st.sampled_from(["lunch", "a: b"]), st.text(max_size=100))
def test_a_cause_survives_the_wire(code: str, text: str) -> None:
    sent = Cause(str(code), "a", text, "p1").ended("b", "r1", 1.0)
    read = told(cancelled("r1", sent)["params"])
    assert (read.code, read.text, read.chain) == (sent.code, sent.text, sent.chain)


def test_a_cause_reads_as_code_and_text() -> None:
    assert str(Cause("unsafe")) == "unsafe"
    assert str(Cause("unsafe", text="leaves the folder")) == "unsafe: leaves the folder"


def test_a_step_has_its_form_on_the_wire() -> None:
    step = CauseStep("a", "p1", "busy", "later")
    assert step.to_wire() == {"by": "a", "id": "p1", "reason": "busy", "text": "later"}

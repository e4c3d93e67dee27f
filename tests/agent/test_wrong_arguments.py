"""Wrong arguments of tools: what their callers are told."""

from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

from meup_agent.agent import signature
from meup_agent.errors import InvalidArguments
from tests.agent.stand_ins import Context, tool_of
from tests.agent.tool_types import Item, one


async def search(
    query: str, limit: Annotated[int, Field(ge=1)], items: list[Item], ctx: Context
) -> None: ...


GOOD: dict[str, Any] = {"query": "q", "limit": 1, "items": []}
NO_TEXT, NO_LIST = "should be a valid string", "should be a valid list"
NOT_KNOWN = "is not an argument"


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({}, {"query": "is required", "limit": "is required", "items": "is required"}),
        (None, {"query": "is required"}),
        (GOOD | {"limit": "five"}, {"limit": "should be a valid integer"}),
        (GOOD | {"query": 5}, {"query": NO_TEXT}),
        (GOOD | {"limit": 0}, {"limit": "should be greater than or equal to 1"}),
        (GOOD | {"items": [{"name": "a"}, {"count": 1}]}, {"items[1].name": "is required"}),
        (GOOD | {"ctx": {}, "more": 1}, {"ctx": NOT_KNOWN, "more": NOT_KNOWN}),
        (GOOD | {"items": '["a"]'}, {"items": NO_LIST}),
        (GOOD | {"query": None, "items": None}, {"query": NO_TEXT, "items": NO_LIST}),
    ],
)
def test_wrong_argument_is_named(arguments: Any, problems: dict[str, str]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        tool_of(search).bind(arguments)
    found = {each["argument"]: each["problem"] for each in caught.value.problems}
    for name, expectation in problems.items():
        assert found[name].startswith(expectation)
        assert f"{name!r} {expectation}" in str(caught.value)
    assert "'search'" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([1], "an array"), ("{}", "a string"), (5, "a number"), (True, "a boolean")],
)
def test_arguments_must_be_an_object(arguments: object, said: str) -> None:
    with pytest.raises(InvalidArguments, match=f"not as {said}"):
        tool_of(search).bind(arguments)


def _picky(value: str) -> str:
    raise ValueError(f"{value} is not to my taste")


def test_validators_words_are_passed_on() -> None:
    tool = tool_of(one(Annotated[str, AfterValidator(_picky)]))
    with pytest.raises(InvalidArguments, match="'value' soup is not to my taste"):
        tool.bind({"value": "soup"})


def test_huge_values_and_names_are_not_echoed() -> None:
    tool = tool_of(one(Annotated[str, AfterValidator(_picky)]))
    huge = "x" * 1_000_000
    arguments = {"value": huge, **{f"{index}{huge}": 1 for index in range(30)}}
    with pytest.raises(InvalidArguments) as caught:
        tool.bind(arguments)
    assert len(caught.value.problems) == signature.MAX_PROBLEMS
    assert str(caught.value).endswith("; and 23 more")
    one_problem = signature.MAX_NAME_CHARS + signature.MAX_PROBLEM_CHARS + 10
    assert len(str(caught.value)) < 100 + signature.MAX_PROBLEMS * one_problem


def test_name_that_utf8_cannot_carry_does_no_harm() -> None:
    with pytest.raises(InvalidArguments) as caught:
        tool_of(one(int)).bind({"value": 1, "\ud800": 1})
    assert "should be a valid string" in str(caught.value)
    assert str(caught.value).encode()


def test_validators_own_crash_is_not_the_callers_fault() -> None:
    def crash(value: str) -> str:
        raise KeyError(value)

    tool = tool_of(one(Annotated[str, AfterValidator(crash)]))
    with pytest.raises(KeyError):
        tool.bind({"value": "x"})

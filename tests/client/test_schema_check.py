"""Arguments against a stranger's schema: what is said, and what it cannot do to us."""

import json
import logging
import socket
import subprocess
import sys
from typing import Any

import pytest

from meup_agent.client.schema_check import MAX_PROBLEMS, MAX_SCHEMA_BYTES, MAX_SCHEMA_OBJECTS
from tests.cli.commands import ArgumentChecker

JsonObject = dict[str, Any]
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def of(schema: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {"x": schema}}


def problems(schema: Any, arguments: JsonObject) -> list[str]:
    return [*map(str, ArgumentChecker(schema, "the tool").problems(arguments) or ())]


def is_unread(schema: Any) -> bool:
    return ArgumentChecker(schema, "the tool").problems({}) is None


STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
INTEGERS = {"type": "array", "items": INTEGER}
NESTED = {
    "$defs": {"point": {"type": "object", "required": ["left"]}},
    **of({"type": "array", "items": {"$ref": "#/$defs/point"}}),
}


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        (STRING, 1, "'x' should be string, not number"),
        (INTEGER, "five", "'x' should be integer, not string"),
        ({"type": "boolean"}, "maybe", "'x' should be boolean, not string"),
        ({"type": "boolean"}, 2, "'x' should be boolean, not number"),
        (STRING, True, "'x' should be string, not boolean"),
        (INTEGER, 1.5, "'x' should be integer, not number"),
        ({"type": ["string", "null"]}, [], "'x' should be string or null, not array"),
        ({"anyOf": [INTEGER, NULL]}, "a", "'x' should be integer or null, not string"),
        ({"anyOf": [INTEGERS, NULL]}, ["a"], "'x[0]' should be integer, not string"),
        ({"enum": ["a", "b"]}, "c", "'x' is 'c', which is not one of ['a', 'b']"),
        ({"minimum": 3}, 1, "'x' is 1, which is less than the minimum of 3"),
        ({"maxLength": 50}, "a" * 60, "'x' is of type string, which is too long"),
        ({"type": "array", "uniqueItems": True}, [1, 1], "'x' is [1, 1], which has non-unique"),
        ({"additionalProperties": STRING}, {"a": 1}, "'x.a' should be string, not number"),
        ({"additionalProperties": False}, {"a": 1}, "'x.a' is not known"),
    ],
)
def test_what_does_not_fit_is_named(schema: JsonObject, value: Any, said: str) -> None:
    (problem,) = problems(of(schema), {"x": value})
    assert problem.startswith(said)


def test_arguments_are_named_wherever_they_stand() -> None:
    assert problems(NESTED, {"x": [{"left": 1}, {}]}) == ["'x[1].left' is required"]
    assert problems(NESTED, {"x": [{"left": 1}]}) == []


def test_several_problems_are_told_and_not_all() -> None:
    schema = {"required": [f"a{number}" for number in range(50)]}
    assert problems(schema, {}) == [f"'a{number}' is required" for number in range(MAX_PROBLEMS)]


def test_a_problem_stays_on_its_line_and_is_not_long() -> None:
    (problem,) = problems(of({"enum": ["a\n\x1b[31m" * 1000]}), {"x": "b"})
    assert problem.isprintable()
    assert len(problem) < 500


@pytest.mark.parametrize("dialect", [{}, {"$schema": DRAFT_7}, {"$schema": DRAFT_7.rstrip("#")}])
def test_the_dialects_of_json_schema_are_read(dialect: JsonObject) -> None:
    found = problems({**of(INTEGER), **dialect}, {"x": "a"})
    assert found == ["'x' should be integer, not string"]


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        True,
        {"type": "strnig"},
        {"required": "xy"},
        {"properties": []},
        {"$schema": "http://example.com/own"},
        {"$schema": 5},
        of({"$ref": "http://example.com/schema"}),
        of({"$ref": "other.json#/a"}),
        of({"$ref": 5}),
        of({"$schema": DRAFT_7, "pattern": "(a+)+$"}),
        {**of({"$ref": "#/$defs/y"}), "$defs": {"y": {"$id": "y", **of({"$ref": "#/$defs/z"})}}},
        of({"enum": ["a" * MAX_SCHEMA_BYTES]}),
        {"allOf": [{} for _ in range(MAX_SCHEMA_OBJECTS)]},
    ],
)
def test_what_cannot_be_read_is_no_obstacle(schema: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "meup_agent.client"):
        assert is_unread(schema)
    (record,) = caplog.records
    assert "the arguments of the tool are left to itself" in record.getMessage()
    assert record.getMessage().isprintable()


@pytest.mark.parametrize(
    "schema",
    [of({"$ref": "#/$defs/missing"}), {"$ref": "#"}, of({"allOf": [{"$ref": "#/properties/x"}]})],
)
def test_what_fails_in_use_is_given_up_once(
    schema: JsonObject, caplog: pytest.LogCaptureFixture
) -> None:
    checker = ArgumentChecker(schema, "the tool")
    with caplog.at_level(logging.INFO, "meup_agent.client"):
        assert checker.problems({"x": 1}) is None
        assert checker.problems({"x": 1}) is None
    assert len(caplog.records) == 1


@pytest.mark.thorough
def test_a_schema_that_takes_years_is_left_to_its_tool(caplog: pytest.LogCaptureFixture) -> None:
    definitions: JsonObject = {"a0": {"type": "integer"}}
    for number in range(1, 60):
        either = {"$ref": f"#/$defs/a{number - 1}"}
        definitions[f"a{number}"] = {"anyOf": [either, either]}
    schema = {"$defs": definitions, **of({"$ref": "#/$defs/a59"})}
    checker = ArgumentChecker(schema, "the tool")
    with caplog.at_level(logging.INFO, "meup_agent.client"):
        assert checker.problems({"x": "a"}) is None
        assert checker.problems({"x": "a"}) is None
        assert checker.problems({"x": 1}) == []
        assert checker.problems({}) == []
    assert len(caplog.records) == 1


FITS: list[tuple[JsonObject, Any]] = [
    # What a stranger could hang us with is not run.
    ({"pattern": "(a+)+$"}, "a" * 60 + "b"),
    ({"patternProperties": {"(a+)+$": False}}, {"a" * 60 + "b": 1}),
    ({"propertyNames": {"pattern": "(a+)+$"}}, {"a" * 60 + "b": 1}),
    ({"uniqueItems": True}, [{} for _ in range(20_000)]),
    # What is left out makes nothing else refuse.
    ({"not": {"pattern": "^/"}}, "a"),
    ({"oneOf": [{"pattern": "^/"}, {"pattern": "^a"}]}, "a"),
    ({"if": {"pattern": "^/"}, "then": {"maxLength": 0}}, "a"),
    ({"contains": {"pattern": "^/"}, "maxContains": 1}, ["a", "b"]),
    ({"not": {"format": "date"}}, "a"),
    ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"ab": 1}),
    ({"patternProperties": {"^a": {}}, "unevaluatedProperties": False}, {"ab": 1}),
    ({"multipleOf": 0.1}, 0.3),
    # What many tools convert is left to them.
    (INTEGER, "5"),
    (INTEGER, True),
    ({"type": "number"}, " 1.5 "),
    ({"type": "boolean"}, "Yes"),
    ({"type": "boolean"}, 1),
    ({"enum": [1, 2], "type": "integer"}, "1"),
    ({"type": "string", "format": "date-time"}, 1_700_000_000),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5"),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
    ({"not": {"type": "integer"}}, "5"),
]


@pytest.mark.parametrize(("schema", "value"), FITS)
def test_what_is_not_checked_is_no_problem(schema: JsonObject, value: Any) -> None:
    assert problems(of(schema), {"x": value}) == []


def test_until_draft_7_nothing_counts_beside_a_reference() -> None:
    schema = {**of({"$ref": "#/definitions/y", "minLength": 50}), "definitions": {"y": {}}}
    assert problems({**schema, "$schema": DRAFT_7}, {"x": "a"}) == []
    assert problems(schema, {"x": "a"}) == ["'x' is 'a', which is too short"]


def test_something_is_left_out_and_the_rest_is_checked() -> None:
    schema = of({"pattern": "^/", "type": "string"})
    assert problems(schema, {"x": 1}) == ["'x' should be string, not number"]
    schema = of({"oneOf": [{"pattern": "^/"}, {"type": "null"}], "maxLength": 1})
    assert problems(schema, {"x": "ab"}) == ["'x' is 'ab', which is too long"]


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[object] = []

    def connect(_: object, address: object) -> None:
        dialled.append(address)
        raise OSError("there is no network here")

    monkeypatch.setattr(socket.socket, "connect", connect)
    for reference in ("http://127.0.0.1:9/x", "https://example.com/x", "file:///etc/passwd"):
        assert is_unread(of({"$ref": reference}))
        schema = {"$id": reference, **of({"$ref": "#/$defs/a"})}
        assert problems(schema, {"x": 1}) == []
    assert dialled == []


def test_the_library_is_loaded_when_it_is_needed() -> None:
    code = "import sys, meup_agent; print(sorted({'jsonschema', 'referencing'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []

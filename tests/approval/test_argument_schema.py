"""Defaults of a schema, wherever they stand, are arguments that rules see, or are asked about."""

import json
import time
from typing import Any, Final

import pytest
from hypothesis import given, reject, settings

from meup_agent import Agent, Request
from meup_agent.approval import AllowRule, DenyRule, Policy
from meup_agent.approval.policy.decider import (
    MAX_SCHEMAS_SEEN,
    ArgumentSchema,
    Decider,
    UnknownDefaults,
)
from tests.effort import scaled
from tests.interaction.people import InMemory, gathered
from tests.tool_schemas import ARGUMENTS, EndlessDefaults, fill_as_server
from tests.tool_schemas import SCHEMAS as ANY_SCHEMAS
from tests.wire import Call, DefaultedObject, payloads

OPTIONS: Final = {
    "type": "object",
    "properties": {"mode": {"type": "string", "default": "fast"}, "level": {"type": "integer"}},
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"properties": {"env": {"default": "prod"}}},
    "allOf": {"allOf": [{"properties": {"env": {"default": "prod"}}}]},
    "allOf in allOf": {"allOf": [{"allOf": [{"properties": {"env": {"default": "prod"}}}]}]},
    "behind a reference": {
        "properties": {"env": {"$ref": "#/$defs/Env"}},
        "$defs": {"Env": {"type": "string", "default": "prod"}},
    },
    "behind two": {
        "properties": {"env": {"$ref": "#/definitions/a~1b"}},
        "definitions": {"a/b": {"$ref": "#/definitions/c%20d"}, "c d": {"default": "prod"}},
    },
    "all behind a reference": {
        "$ref": "#/$defs/Arguments",
        "$defs": {"Arguments": {"properties": {"env": {"default": "prod"}}}},
    },
    "the same twice": {
        "properties": {"env": {"default": "prod"}},
        "anyOf": [{"properties": {"env": {"default": "prod"}}}, {"required": ["env"]}],
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_default_that_holds_in_any_case_is_filled_in(schema: dict[str, Any]) -> None:
    found, unsure = ArgumentSchema(schema).fill({"a": 1})
    assert found == {"a": 1, "env": "prod"}
    assert isinstance(found, DefaultedObject)
    assert found.filled == {"env"}
    assert unsure == frozenset()
    assert ArgumentSchema(schema).fill({"env": "test"})[0] == {"env": "test"}


def test_a_reference_may_be_an_anchor() -> None:
    schema = {
        "properties": {"env": {"$ref": "#env"}},
        "$defs": {"Env": {"$anchor": "env", "default": "prod"}},
    }
    assert ArgumentSchema(schema).fill({})[0] == {"env": "prod"}


@pytest.mark.parametrize(
    ("schema", "given", "filled"),
    [
        ({"o": OPTIONS}, {"o": {}}, {"o": {"mode": "fast"}}),
        ({"o": OPTIONS}, {"o": {"mode": "slow"}}, {"o": {"mode": "slow"}}),
        ({"o": {**OPTIONS, "default": {}}}, {}, {"o": {"mode": "fast"}}),
        ({"o": {**OPTIONS, "default": {"level": 3}}}, {}, {"o": {"mode": "fast", "level": 3}}),
        ({"o": {"items": OPTIONS}}, {"o": [{}, 1]}, {"o": [{"mode": "fast"}, 1]}),
        ({"o": {"prefixItems": [{}, OPTIONS]}}, {"o": [{}, {}]}, {"o": [{}, {"mode": "fast"}]}),
        ({"o": {"items": [OPTIONS], "additionalItems": OPTIONS}}, {"o": [{}, {}]},
         {"o": [{"mode": "fast"}, {"mode": "fast"}]}),
        ({"o": {"properties": {"p": OPTIONS}}}, {"o": {"p": {}}}, {"o": {"p": {"mode": "fast"}}}),
        ({"o": {"anyOf": [{"$ref": "#/$defs/O"}, {"type": "null"}], "default": None}}, {},
         {"o": None}),
        ({"o": True, "p": {"default": False}}, {}, {"p": False}),
    ],
)  # fmt: skip
def test_defaults_in_objects_and_arrays_are_filled_in(
    schema: dict[str, Any], given: dict[str, Any], filled: dict[str, Any]
) -> None:
    whole = {"properties": schema, "$defs": {"O": OPTIONS}}
    assert ArgumentSchema(whole).fill(given) == (filled, frozenset())


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"properties": {"env": {"default": "prod"}}}, {}]},
        {"oneOf": [{"properties": {"env": {"default": "prod"}}}, {}]},
        {"if": {}, "then": {"properties": {"env": {"default": "prod"}}}},
        {"if": {}, "else": {"allOf": [{"properties": {"env": {"default": "prod"}}}]}},
        {"dependentSchemas": {"a": {"properties": {"env": {"default": "prod"}}}}},
        {"not": {"properties": {"env": {"default": "prod"}}}},
        {"properties": {"env": {"anyOf": [{"default": "prod"}, {"type": "null"}]}}},
        {
            "properties": {"env": {"default": "prod"}},
            "allOf": [{"properties": {"env": {"default": "test"}}}],
        },
        {
            "properties": {"env": {"default": 1}},
            "anyOf": [{"properties": {"env": {"default": True}}}],
        },
        {"properties": {"env": OPTIONS}},
        {"properties": {"env": {"allOf": [{"$ref": "#/$defs/O"}]}}, "$defs": {"O": OPTIONS}},
        {"properties": {"env": {"properties": {"deep": {"properties": {"o": OPTIONS}}}}}},
    ],
)
def test_a_default_that_may_hold_is_unsure(schema: dict[str, Any]) -> None:
    assert ArgumentSchema(schema).fill({"a": 1}) == ({"a": 1}, frozenset({"env"}))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"env": {"anyOf": [OPTIONS, {"type": "null"}]}}},
        {"properties": {"env": {"additionalProperties": OPTIONS}}},
        {"properties": {"env": {"patternProperties": {".": OPTIONS}}}},
        {"patternProperties": {"e": {"properties": {"p": {"default": 1}}}}},
    ],
)
def test_a_default_that_may_hold_within_what_is_given_is_unsure(schema: dict[str, Any]) -> None:
    given: dict[str, Any] = {"env": {"o": {}}}
    assert ArgumentSchema(schema).fill(given) == (given, frozenset({"env"}))
    filled = ArgumentSchema({**schema, "allOf": [{"properties": {"env": {"default": {"o": {}}}}}]})
    assert filled.fill({"a": 1}) == ({"a": 1, **given}, frozenset({"env"}))


@pytest.mark.parametrize(
    "schema",
    [
        {"contains": OPTIONS},
        {"unevaluatedItems": OPTIONS},
        {"prefixItems": [{}, {"default": "prod"}]},
        {"items": [{}, {"allOf": [{"default": "prod"}]}]},
        {"anyOf": [{"prefixItems": [{}, {}, OPTIONS]}, {}]},
    ],
)
def test_a_default_that_may_hold_within_an_array_is_unsure(schema: dict[str, Any]) -> None:
    given: dict[str, Any] = {"env": [{}]}
    whole = {"properties": {"env": schema}}
    assert ArgumentSchema(whole).fill(given) == (given, frozenset({"env"}))


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    node: dict[str, Any] = {"properties": {"next": {"$ref": "#"}, "size": {"default": 1}}}
    found, unsure = ArgumentSchema(node).fill({"next": {"next": {}}})
    assert found == {"next": {"next": {"size": 1}, "size": 1}, "size": 1}
    assert unsure == {"next"}
    endless: dict[str, Any] = {"properties": {"next": {"$ref": "#", "default": {}}}}
    with pytest.raises(UnknownDefaults):
        ArgumentSchema(endless).fill({})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/none"}, "b": {"default": 1}}},
        {"properties": {"a": {"$ref": "#none"}, "b": {"default": 1}}},
        {"properties": {"a": {"$ref": "https://example.com/x"}, "b": {"default": 1}}},
        {"properties": {f"a{n}": {"default": n} for n in range(MAX_SCHEMAS_SEEN + 1)}},
        {"properties": {"a": {}}, "default": {"a": 1}},
        {"allOf": [{"default": {"a": 1}}]},
    ],
)
def test_what_cannot_be_told_is_not_guessed(schema: dict[str, Any]) -> None:
    with pytest.raises(UnknownDefaults):
        ArgumentSchema(schema).fill({})


def test_many_elements_share_what_applies_to_them() -> None:
    schema = {"properties": {"o": {"items": OPTIONS}}}
    found, _ = ArgumentSchema(schema).fill({"o": [{} for _ in range(2 * MAX_SCHEMAS_SEEN)]})
    assert found["o"][-1] == {"mode": "fast"}


def nested_lists(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"properties": {"a": {"items": schema, "default": [{}] * 10}}}
    return schema


SHARED: Final[dict[str, Any]] = {
    "properties": {f"a{n}": {"properties": {"b": {}}} for n in range(900)}
}
ANYTHING: Final[dict[str, Any]] = {
    "items": {"anyOf": [{"required": [str(n)]} for n in range(4_000)]}
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (nested_lists(8), {"z": 1}),
        ({"properties": {"a": {**ANYTHING, "default": [{}]}}}, {"a": [{}] * 40_000}),
        (
            {
                "properties": {f"p{n}": {"$ref": "#/$defs/s"} for n in range(2_000)},
                "$defs": {"s": SHARED, "t": {"default": 1}},
            },
            {},
        ),
        (
            {
                "properties": {f"p{n}": {"$ref": "#/$defs/s"} for n in range(2_000)},
                "$defs": {"s": {"default": [{"a": 1}] * 20_000}},
            },
            {},
        ),
        (
            {"properties": {"a": {"items": {"prefixItems": [True] * 50_000, "default": 1}}}},
            {"a": [[]] * 50_000},
        ),
        (
            {
                "properties": {"a": {"items": {"additionalProperties": {"default": 1}}}},
                "allOf": [{"patternProperties": {str(n): {} for n in range(4_000)}}],
            },
            {f"x{n}": {} for n in range(10_000)},
        ),
    ],
    ids=["lists", "choices", "shared", "long defaults", "places", "patterns"],
)
def test_no_schema_takes_long_to_fill_in(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    before = time.process_time()
    read = ArgumentSchema(schema)
    read.named()
    with pytest.raises(UnknownDefaults):
        read.fill(arguments)
    assert time.process_time() - before < 3


def test_a_large_table_is_filled_in() -> None:
    columns = {f"c{n}": {"type": "string", "default": f"v{n}"} for n in range(200)}
    schema = {"properties": {"rows": {"type": "array", "items": {"properties": columns}}}}
    before = time.process_time()
    found, unsure = ArgumentSchema(schema).fill({"rows": [{f"c{n}": "x"} for n in range(100)]})
    assert time.process_time() - before < 2
    assert not unsure
    assert found["rows"][99] == {f"c{n}": f"v{n}" for n in range(200)} | {"c99": "x"}


@pytest.mark.thorough
@settings(max_examples=scaled(1_000), deadline=None)
@given(ANY_SCHEMAS, ARGUMENTS)
def test_arguments_are_right_or_unsure(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    try:
        used = fill_as_server(schema, arguments)
    except EndlessDefaults:
        reject()
    try:
        found, unsure = ArgumentSchema(schema).fill(arguments)
    except UnknownDefaults:
        return
    for name in used.keys() | found.keys():
        if name not in unsure:
            assert written(found.get(name, ...)) == written(used.get(name, ...))


def written(value: Any) -> str:
    """A value as text: true is not 1."""
    return json.dumps(value, sort_keys=True, default=repr)


def owner(schema: dict[str, Any]) -> Agent:
    agent = Agent("tools")

    @agent.on_request("tools/list")
    async def listed(request: Request) -> dict[str, Any]:
        return {"tools": [{"name": "deploy", "inputSchema": {"type": "object", **schema}}]}

    return agent


async def verdict(policy: Policy, schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    meta = {payloads.TARGET: "tools"}
    call = Call("tools/call", {"name": "deploy", "arguments": arguments, "_meta": meta})
    async with gathered(InMemory(), owner(schema), "reviewer") as (_, space):
        return (await Decider(lambda: policy).judge(call, "proposer", space)).verdict


NO_PRODUCTION: Final = DenyRule("deploy", arguments={"env": "prod*"}, name="no production")


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_a_deny_sees_a_default_wherever_it_stands(schema: dict[str, Any]) -> None:
    policy = Policy([NO_PRODUCTION, AllowRule("deploy")])
    assert await verdict(policy, schema, {}) == "deny"
    assert await verdict(policy, schema, {"env": "test"}) == "allow"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (NO_PRODUCTION, "ask"),
        (DenyRule("deploy", arguments={"e*": "prod"}), "ask"),
        (DenyRule("deploy", arguments={"**": "prod"}), "ask"),
        (DenyRule("deploy", arguments={"$.env": "prod"}), "ask"),
        (DenyRule("deploy", arguments=[{"region": "x"}, {"env": "prod"}]), "ask"),
        (DenyRule("deploy", arguments={"region": "x"}), "allow"),
        (DenyRule("deploy", arguments={"env": "prod"}, proposer="eve"), "allow"),
        (DenyRule("other", arguments={"env": "prod"}), "allow"),
        (AllowRule("deploy", arguments={"env": "prod"}), "allow"),
    ],
)
async def test_a_rule_about_an_unsure_default_asks(rule: Any, expected: str) -> None:
    schema = {
        "properties": {"env": {}, "region": {}},
        "anyOf": [{"properties": {"env": {"default": "prod"}}}, {}],
    }
    assert await verdict(Policy([rule, AllowRule("deploy")]), schema, {}) == expected


async def test_where_defaults_cannot_be_told_nothing_is_allowed() -> None:
    schema = {"properties": {"next": {"$ref": "#", "default": {}}}}
    assert await verdict(Policy([AllowRule("deploy")]), schema, {}) == "ask"


@pytest.mark.parametrize("name", ["Env", "ENV", "env\u200b", " env"])
async def test_an_argument_that_is_nearly_one_of_the_tool_is_asked_about(name: str) -> None:
    schema = {"properties": {"env": {}}, "additionalProperties": True}
    test = AllowRule("deploy", arguments={"env": "test"}, others="any")
    assert await verdict(Policy([test]), schema, {"env": "test", name: "prod"}) == "ask"
    assert await verdict(Policy([AllowRule("deploy")]), schema, {name: "prod"}) == "ask"
    assert await verdict(Policy([test]), schema, {"env": "test", "other": "prod"}) == "allow"
    # A rule that holds back takes either.
    policy = Policy([NO_PRODUCTION, AllowRule("deploy")])
    assert await verdict(policy, schema, {"env": "test", name: "prod"}) == "deny"


@pytest.mark.parametrize(
    "given", [{"a": 1, "A": 1}, {"o": {"p": 1, "P": 2}}, {"o": [{"p": 1, "p\u200b": 2}]}]
)
async def test_arguments_with_two_names_nearly_alike_are_asked_about(given: dict[str, Any]) -> None:
    schema = {"additionalProperties": True}
    assert await verdict(Policy([AllowRule("deploy")]), schema, given) == "ask"
    assert await verdict(Policy([AllowRule("deploy")]), schema, {"a": 1, "o": {"a": 1}}) == "allow"


@pytest.mark.parametrize("inner", [False, True])
async def test_names_that_take_too_much_work_are_asked_about(inner: bool) -> None:
    name = "\u0301" * 30_000 + "\u0316" * 30_000
    given: dict[str, Any] = {name: 1, "a": 1}
    schema = {"additionalProperties": True}
    before = time.process_time()
    for denied in (9, 0):
        rules = [DenyRule("deploy", arguments={"env": f"{n}*"}) for n in range(denied)]
        policy = Policy([*rules, AllowRule("deploy")])
        arguments = {"o": given} if inner else given
        assert await verdict(policy, schema, arguments) == "ask"
        found = policy.decide(Call("tools/call", {"name": "deploy", "arguments": arguments}), "bob")
        assert found.verdict == ("ask" if denied and not inner else "allow")
    assert time.process_time() - before < 2


async def test_a_default_is_no_argument_that_an_allow_would_have_to_name() -> None:
    schema = {"properties": {"env": {"default": "test"}, "o": OPTIONS, "force": {}}}
    policy = Policy([AllowRule("deploy", arguments={"o": {"level": 1}})])
    assert await verdict(policy, schema, {"o": {"level": 1}}) == "allow"
    assert await verdict(policy, schema, {"o": {"level": 1}, "env": "test"}) == "ask"
    assert await verdict(policy, schema, {"o": {"level": 1, "mode": "slow"}}) == "ask"
    assert await verdict(policy, schema, {"o": {"level": 1}, "force": True}) == "ask"
    # A rule about an argument that is left out sees its default.
    named = Policy([AllowRule("deploy", arguments={"env": "test"})])
    assert await verdict(named, schema, {}) == "allow"

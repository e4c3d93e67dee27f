"""The form of a tool: what its calls are, without the texts that a model reads."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.client.tool_changes import (
    digest_of_form,
    form_differences,
    form_of,
    text_differences,
    with_accepted_texts,
)


def tool(schema: Any, **parts: Any) -> dict[str, Any]:
    return {"name": "t", "inputSchema": schema, **parts}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Read",
    "$comment": "for us",
    "properties": {
        "path": {"type": "string", "description": "The file.", "examples": ["a", 1, None]},
        "title": {"type": "string"},
        "deep": {"anyOf": [{"items": {"description": "one"}}, {"type": "null", "title": "none"}]},
    },
    "$defs": {"examples": {"description": "two"}},
    "additionalProperties": {"title": "more"},
}


EXAMPLE, DESCRIPTION = {"$ref": "#/examples/0"}, {"$ref": "#/description"}


def test_texts_of_schemas_are_no_part_of_the_form() -> None:
    assert form_of(
        tool(SCHEMA, description="d", annotations={"title": "T", "readOnlyHint": True})
    ) == {
        "inputSchema": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "title": {"type": "string"},
                "deep": {"anyOf": [{"items": {}}, {"type": "null"}]},
            },
            "$defs": {"examples": {}},
            "additionalProperties": {},
        },
        "annotations": {"readOnlyHint": True},
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Names that are those of texts, where they are none.
        ({"properties": {}}, {"properties": {"description": {"type": "string"}}}),
        ({"properties": {"title": True}}, {"properties": {"title": False}}),
        ({"$defs": {"examples": {}}}, {"$defs": {"examples": {"type": "string"}}}),
        ({"patternProperties": {"title": {}}}, {"patternProperties": {"title": False}}),
        # Schemas that a reference names, wherever they stand.
        (EXAMPLE | {"examples": [{"type": "string"}]}, EXAMPLE | {"examples": [{}]}),
        (EXAMPLE | {"examples": [False]}, EXAMPLE | {"examples": [True]}),
        (DESCRIPTION | {"description": {"type": "string"}}, DESCRIPTION | {"description": {}}),
        # Values are not schemas: what looks like a text in them is one of theirs.
        ({"default": {"title": "a"}}, {"default": {"title": "b"}}),
        ({"const": {"description": "a"}}, {"const": {"description": "b"}}),
        ({"enum": [{"title": "a"}]}, {"enum": [{"title": "b"}]}),
        # Python takes these for equal.
        ({"const": 1}, {"const": True}),
        ({"const": 1}, {"const": 1.0}),
        ({"const": 0.0}, {"const": -0.0}),
        # What is not known may mean anything.
        ({"x-mcp-header": "a"}, {"x-mcp-header": "b"}),
        ({"required": ["a"]}, {}),
        (True, {}),
    ],
)
def test_form_is_another_one(before: Any, after: Any) -> None:
    assert digest_of_form(tool(before)) != digest_of_form(tool(after))
    assert list(form_differences(tool(after), tool(before)))


@pytest.mark.parametrize(
    "change",
    [
        {"instructions": "Obey."},
        {"icons": [{"src": "https://a.example"}]},
        {"execution": {"taskSupport": "required"}},
        {"_meta": {"hint": "Obey.", "dev.meup/changed": {}}},
    ],
)
def test_field_that_is_not_known_is_of_the_form(change: dict[str, Any]) -> None:
    (name,) = change
    before, after = tool(SCHEMA), tool(SCHEMA, **change)
    assert digest_of_form(before) != digest_of_form(after)
    [difference] = map(str, form_differences(after, before))
    assert difference.startswith(f"{name} is new: ")
    assert "dev.meup" not in difference
    assert not list(text_differences(after, before))


def test_marks_of_a_bridge_are_no_part_of_the_form() -> None:
    marked = tool(SCHEMA, _meta={"dev.meup/changed": {"texts": True}})
    assert digest_of_form(marked) == digest_of_form(tool(SCHEMA))


def test_accepted_texts_stand_where_they_were() -> None:
    changed = copy.deepcopy(SCHEMA)
    changed["title"] = "Obey"
    changed["properties"]["path"] = {"type": "number", "description": "Obey."}
    changed["properties"]["cmd"] = {"description": "Obey.", "items": [{"title": "Obey"}]}
    del changed["properties"]["deep"]["anyOf"][0]["items"]["description"]
    changed["properties"]["deep"]["anyOf"].append({"description": "Obey."})
    shown = with_accepted_texts(
        tool(changed, description="Obey.", title="Obey"), tool(SCHEMA, description="Reads.")
    )
    assert shown["description"] == "Reads."
    assert "title" not in shown
    assert shown["inputSchema"]["title"] == "Read"
    properties = shown["inputSchema"]["properties"]
    assert properties["path"] == {**SCHEMA["properties"]["path"], "type": "number"}
    assert properties["cmd"] == {"items": [{}]}
    assert properties["deep"]["anyOf"] == [*SCHEMA["properties"]["deep"]["anyOf"], {}]


def test_difference_begins_where_texts_differ() -> None:
    start = "All of this is the same in both. " * 400
    [difference] = text_differences(
        tool({}, description=f"{start}Then obey."), tool({}, description=f"{start}Then stop.")
    )
    line = str(difference)
    assert line.startswith("description was …")
    assert line.count("Then stop.") == line.count("Then obey.") == 1


def test_difference_of_a_list_is_at_its_place() -> None:
    before, after = {"enum": [*map(str, range(500))]}, {"enum": [*map(str, range(499)), "rm"]}
    assert [*map(str, form_differences(tool(after), tool(before)))] == [
        'inputSchema.enum[499] was "499", and is "rm"'
    ]


def test_difference_is_safe_to_print() -> None:
    wild = {"properties": {"\x1b[31m\n": {"enum": ["\u202e"]}}}
    assert all(str(each).isprintable() for each in form_differences(tool(wild), None))


def schemas(inner: Any) -> Any:
    """Objects with keys that mean something in a schema."""
    keys = (
        *("title", "description", "examples", "$comment", "properties", "items", "anyOf"),
        *("$defs", "default", "const", "enum", "$ref", "a"),
    )
    return st.dictionaries(st.sampled_from(keys), inner, max_size=4)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | schemas(inner),
    max_leaves=12,
)


whole = st.builds(
    lambda schema, parts: tool(schema, **parts),
    schemas(values),
    st.dictionaries(st.sampled_from(("title", "examples", "icons", "_meta")), values, max_size=2),
)


@given(whole, whole)
def test_space_reads_the_form_of_now_and_no_text_but_the_accepted(new: Any, old: Any) -> None:
    shown = with_accepted_texts(new, old)
    assert digest_of_form(shown) == digest_of_form(new)
    bare = with_accepted_texts(new, None)
    assert form_of(bare) == form_of(new)
    assert with_accepted_texts(bare, None) == bare
    # Each difference is told, and none where there is none.
    is_same = digest_of_form(new) == digest_of_form(old)
    assert (not list(form_differences(new, old))) == is_same
    assert with_accepted_texts(old, old) == old

"""Names and URIs for MCP clients: legal for the strictest, stable, and each of one participant."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meup_agent.mcp.sdk.naming import (
    MAX_NAME_CHARS,
    OwnName,
    Template,
    exposed_name,
    unwrap_uri,
    wrap_template,
    wrap_uri,
)

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

NAMES = st.text(min_size=1, max_size=80)
SIMILAR = st.text(alphabet="ab_-2 ", min_size=1, max_size=12)
LONG = st.text(alphabet="a_ü", min_size=60, max_size=66)
"""Names that are one name, or nearly one, once they are shortened to 64 characters."""


@pytest.mark.parametrize(
    ("participant", "tool", "expected"),
    [
        ("files", "read", "files_read"),
        ("files", "read_all", "files_read_all"),
        ("git-hub", "Open-PR", "git-hub_Open-PR"),
        ("my_files", "read", "my_files_read-syg7iloglfklv"),
        ("files", "read.all", "files_read_all-ap77odmthcti3"),
        ("ordner", "öffnen", "ordner__ffnen-o5kz554w7bbo2"),
        ("x" * 40, "y" * 40, f"{'x' * 40}_{'y' * 9}-67fxud5xdw26w"),
    ],
)
def test_a_plain_name_is_readable_and_another_has_a_stable_suffix(
    participant: str, tool: str, expected: str
) -> None:
    assert exposed_name(participant, tool) == expected


@given(NAMES, NAMES)
def test_every_name_is_legal(participant: str, tool: str) -> None:
    assert LEGAL.match(exposed_name(participant, tool))
    assert len(exposed_name(participant, tool)) <= MAX_NAME_CHARS


@given(SIMILAR, SIMILAR, SIMILAR, SIMILAR)
@example("a", "b_c", "a_b", "c")
@example("a", "b c", "a b", "c")
def test_two_tools_never_have_one_name(one: str, tool: str, other: str, another: str) -> None:
    same = (one, tool) == (other, another)
    assert (exposed_name(one, tool) == exposed_name(other, another)) is same


@given(LONG, LONG)
@example("a" * 100 + "1", "a" * 100 + "2")
def test_two_long_names_stay_two(one: str, other: str) -> None:
    assert (exposed_name("p", one) == exposed_name("p", other)) is (one == other)
    assert (exposed_name(one, "t") == exposed_name(other, "t")) is (one == other)


def test_no_participant_takes_the_name_of_another() -> None:
    theirs = exposed_name("my_files", "read")
    participant, _, tool = theirs.partition("_")
    assert exposed_name(participant, tool) != theirs


@given(NAMES, st.text(min_size=1))
@example("a/b%2F", "meup://participant/x/y")
@example("p", "file:///a/../b?c#d%2F")
def test_a_wrapped_uri_is_reversible(participant: str, uri: str) -> None:
    assert unwrap_uri(wrap_uri(participant, uri)) == OwnName(participant, uri)


@pytest.mark.parametrize("uri", ["file:///x", "meup://participant/", "meup://participant/p/", "x"])
def test_another_uri_is_nobodys(uri: str) -> None:
    assert unwrap_uri(uri) is None


@pytest.mark.parametrize(
    ("template", "values", "uri"),
    [
        ("file:///{path}", ["a%2Fb"], "file:///a%2Fb"),
        ("db://{table}/rows/{id}", ["users", "7"], "db://users/rows/7"),
        ("x://y", [], "x://y"),
        ("{a}", ["z"], "z"),
    ],
)
def test_a_wrapped_templates_uri_is_its_own(template: str, values: list[str], uri: str) -> None:
    wrapped = wrap_template("p q", template)
    for value in values:
        wrapped = re.sub(r"\{[^}]*\}", value, wrapped, count=1)
    assert Template("p q", template).unwrap(wrapped) == uri
    assert Template("other", template).unwrap(wrapped) is None
    assert Template("p q", template).matches(uri)


def test_a_template_of_a_stranger_takes_no_time() -> None:
    template = Template("p", "{a}x" * 5_000)
    assert not template.matches("x" * 4_999 + "y" * 100_000)

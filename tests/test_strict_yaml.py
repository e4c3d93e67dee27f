"""YAML as people write it: what other readers take silently is refused, with its line."""

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.strict_yaml import parse_yaml


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"a: 1\nb: 2\na: 3", "line 3: expected YAML, but the key 'a' stands twice"),
        (b"a: {b: 1, b: 2}", "line 1: expected YAML, but the key 'b' stands twice"),
        (b"a: [", "line 1: expected YAML, but"),
        (b"a: \xff", "expected YAML in UTF-8"),
        (b"a: \x07", "expected YAML in printable characters"),
        (b"[" * 1_000, "expected YAML that nests less deeply"),
        (b"a: 2024-13-45", "a value looks like a date and is none"),
        (b"a: !!python/name:os.system", "expected YAML, but"),
    ],
)
def test_what_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_yaml(raw, "file.yaml")
    assert str(raised.value).startswith("file.yaml")
    assert said in str(raised.value)


def test_one_key_may_stand_in_two_places() -> None:
    assert parse_yaml(b"a: {x: 1}\nb: {x: 2}") == {"a": {"x": 1}, "b": {"x": 2}}


@pytest.mark.parametrize(
    ("raw", "line", "key"),
    [(b"a: {no: 1}", 1, "no"), (b"a:\n  'b': x\n  2024-01-01: y", 3, "2024-01-01")],
)
def test_a_key_that_is_no_text_is_told_as_it_is_written(raw: bytes, line: int, key: str) -> None:
    said = (
        f"line {line}: expected YAML, but the key '{key}' is not read as a text; put it in quotes"
    )
    with pytest.raises(ConfigurationError, match=said):
        parse_yaml(raw, text_keys=True)


def test_a_key_in_quotes_and_a_merge_are_texts() -> None:
    raw = b"a: &a {'no': 1, =: 2}\nb: {<<: *a, 'yes': 3}"
    parsed = {"a": {"no": 1, "=": 2}, "b": {"no": 1, "=": 2, "yes": 3}}
    assert parse_yaml(raw, text_keys=True) == parsed

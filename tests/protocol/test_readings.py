"""Readings: what lets through takes little, what holds back takes all that a reader would say."""

import posixpath
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.patterns import fold_path, fold_text
from tests.effort import scaled
from tests.wire import ArgumentCompiler, DefaultedObject, Reading, WorkBudget, compile_pattern

pytestmark = pytest.mark.rule("7.readings")


def widely(pattern: object, value: object) -> bool:
    return compile_pattern(pattern, reading=Reading.WIDE).matches(value)


def narrowly(pattern: object, value: object) -> bool:
    return compile_pattern(pattern).matches(value)


NAMED: list[tuple[object, object]] = [
    # dots and steps
    ("/home/ann/**", "/home/ann/.ssh/id_rsa"),
    ("/home/ann/**", "/home/ann/.env"),
    ("/home/ann/**", "/home/ann/./x"),
    ("/home/ann/**", "/home/bob/../ann/x"),
    ("/home/ann/**", "/home//ann/x"),
    ("/home/ann/**", "/home/ann/"),
    ("/home/ann/**", "/home/ann/x/../../.."),
    ("/home/ann/*", "/home/ann/a/b"),
    ("/etc/passwd", "/etc/../etc/passwd"),
    ("/etc/passwd", "/../etc/./passwd/"),
    ("secrets/**", "./secrets/key"),
    ("./secrets/**", "secrets/key"),
    ("/etc/./pass*", "/etc/passwd"),
    ("/a/b/../{x,y}*", "/a/xy"),
    ("**/.ssh/**", "a/.ssh/id"),
    ("**/x", ".x/../x"),
    ("/etc/**/key", "/etc/.a/../b/c/key"),
    ("C:/Users/**", "C:\\Users\\ann"),
    ("C:\\Users\\*", "C:\\Users\\ann\\.x"),
    ("C:\\\\Users\\\\ann*", "c:/users/ANN"),
    ("/a?c/[x-z]/**", "/A.C/Y/.b"),
    # texts
    ("rm *", "rm -rf /"),
    ("rm *", "rm -rf /home/x; ls, y\n"),
    ("rm *", "RM\t-rf /"),
    ("rm *", "  rm  x"),
    ("*DROP TABLE*", "drop table a/b"),
    ("*DROP TABLE*", "x;\nDROP\n  TABLE a"),
    ("https://evil.com/*", "https://evil.com/a/b"),
    ("https://evil.com/*", "HTTPS://Evil.com/.well-known/x"),
    ("*@evil.com", "a@b.org, c@evil.com"),
    ("stra\u00dfe", "STRASSE"),
    ("caf\u00e9*", "Cafe\u0301s"),
    ("rm *", "\uff52\uff4d x"),
    ("se*cret", "se\u200bcret"),
    ("secret", "se\u200bcret"),
    ("se*cret", "se\ufe0fcret"),
    ("secret", "sec\u3164ret\U000e0100"),
    ("rm *", "rm\u2800x"),
    ("se\u200bcret*", "secrets"),
    ("[!a]x*", "Ax"),
    ("[A-C]?", "b/"),
    ("production", "Production"),
    # arrays
    ("/etc/**", ["/tmp/x", ["/etc/passwd"]]),
    ("rm *", ["rm", "-rf", "/"]),
    ("rm *", [["sudo"], ["rm", "-rf"]]),
    (13, [7, 13]),
    ({"path": "/etc/*"}, [{"path": "/etc/x"}]),
    ({"**": "rm *"}, {"a": [["rm", "x"]]}),
    ({"a*": "rm *"}, {"ab": ["rm x"]}),
    (["x", "y"], ["Y"]),
    # names
    ({"path": "/etc/*"}, {"Path": "/etc/x"}),
    ({"path": "/etc/*"}, {"path": "/tmp/x", "PATH": "/etc/x"}),
    ({"a": {"path": "b"}}, {"A": {"pa\u200bth": "b"}}),
    ({"$.a.path": "/etc/*"}, {"a": {"Path": "/etc/x"}}),
    ({"$..path": "/etc/*"}, {"a": [{"Path": "/etc/x"}]}),
    # a wildcard alone
    ("*", [{"a": 1}]),
    ("**", {"a": 1}),
    ({"cc": "*"}, {"cc": 5}),
    (["x", "*"], False),
    # negations
    ("!docs/**", "docs/.git"),
    ("!docs/**", "docs/a,b"),
    ("!6", 7),
    ("!test", ["prod"]),
    ("!test", {"name": "test"}),
    ("!*", ""),
]


@pytest.mark.parametrize(("pattern", "value"), NAMED, ids=repr)
def test_the_wide_reading_takes_what_a_reader_would_say_is_named(
    pattern: object, value: object
) -> None:
    assert widely(pattern, value)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        each
        for each in NAMED
        if each not in (("!6", 7), ("!*", ""), ("/home/ann/**", "/home/ann/"))
        and each[0] not in ("!docs/**", "!test", "**/.ssh/**", "[!a]x*", "[A-C]?", "se*cret", 13)
    ],
    ids=repr,
)
def test_the_narrow_reading_takes_none_of_it(pattern: object, value: object) -> None:
    assert not narrowly(pattern, value)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("/home/ann/**", "/home/anna"),
        ("/home/ann/**", "/home/bob/ann"),
        ("**/x", "ax"),
        ("a/*", "a"),
        ("rm *", "rmdir"),
        ("rm *", "rm"),
        ("secret", "secrets"),
        ("[ab]c*", "dc"),
        ("a?c", "ac"),
        ("*", None),
        ("*", []),
        ("*", {}),
        ("a*", 5),
        ("{a,b}/*", "c/x"),
        (13, "13"),
        (True, 1),
        ("13", 13),
        ({"a": "x"}, {"b": "x"}),
        ("/etc/*", {"path": "/etc/x"}),
        ("!a", "a"),
        ("!docs/**", "docs/a"),
        # a regular expression means the very text
        ("/^rm /", "RM x"),
        ("/^rm /", ["rm", "x"][:1]),
        ("/^\\/etc\\//", "/home/../etc/x"),
    ],
    ids=repr,
)
def test_the_wide_reading_takes_nothing_else(pattern: object, value: object) -> None:
    assert not widely(pattern, value)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("!/etc/**", "/etc/.ssh/id"),
        ("!/etc/**", "/home/../etc/x"),
        ("!rm *", "rm -rf /"),
        ("!production", "Production"),
        ("!*@evil.com", "a@evil.com,b@evil.com"),
        ("!!!a/*", "a/b/c"),
    ],
)
def test_what_a_negation_excepts_is_read_widely(pattern: str, value: str) -> None:
    assert not narrowly(pattern, value)
    assert not narrowly({"x": [pattern]}, {"x": value})


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("/a/../b", "/b"),
        ("/../a", "/a"),
        ("../a/..", ".."),
        ("a/..", ""),
        ("./a//b/.", "a/b"),
        ("../../a", "../../a"),
        ("/", "/"),
        (".a/..b", ".a/..b"),
        ("\\A\\..\\b", "/b"),
        (" a \t b\n", "a b"),
        ("\u200b", ""),
        ("a\u202eb", "ab"),
        ("/x*/../b", "/b"),
        ("C:\\..\\Windows", "c:/windows"),
        ("C:\\a\\..\\..\\b", "c:/b"),
        ("c:/..", "c:"),
        ("https://host/../a", "https:/host/a"),
        ("https://host/a/../../b", "https:/host/b"),
        ("https:\\\\host\\..\\a", "https:/host/a"),
        ("https:/host/../a", "https:/host/a"),
        ("https://host/..", "https:/host"),
        ("s3+x://host/../a", "s3+x:/host/a"),
        ("sqlite:///a/../../b", "sqlite:/b"),
        ("file:///../a", "file:/a"),
        ("file:/a/../../b", "file:/b"),
        ("file://host/../a", "file:/host/a"),
        ("file:///C:/../a", "file:/c:/a"),
        ("a/https://b/../c", "a/https:/c"),
        ("/[x]/../b", "/b"),
        ("/{x}/y?/../../b", "/b"),
    ],
)
def test_plain_form_of_a_text(text: str, plain: str) -> None:
    assert fold_text(text) == plain


MARKS = "e\u00e9\u0301\u0316\u0327\u0344\u0345\u0f73\u0f81\uac00\u1100\u1161\u11a8\ufdfa"


@settings(max_examples=scaled(300), deadline=None)
@given(
    st.lists(st.text(MARKS, max_size=9), max_size=40).map("".join),
    st.text(MARKS[2:8], min_size=1, max_size=5),
    st.integers(0, 60),
)
def test_plain_form_does_not_depend_on_how_a_long_text_is_cut(
    text: str, marks: str, times: int
) -> None:
    text += "\u00e9" + marks * times + text
    assert fold_text(text) == fold_text(unicodedata.normalize("NFKD", text))
    assert fold_text(text) == fold_text(unicodedata.normalize("NFC", text))


STEPS = st.lists(
    st.sampled_from(["home", "ann", "ANN", ".", "..", "", ".ssh", "bob", "x,y", "a b"]), max_size=9
)


@settings(max_examples=scaled(1_000), deadline=None)
@given(STEPS, st.sampled_from(["/home/ann/**", "/home/ann/*", "/home//ann/x/../**"]))
def test_every_path_that_leads_into_a_folder_is_taken(steps: list[str], pattern: str) -> None:
    """As the operating system takes its steps, where no link stands in between."""
    path = "/" + "/".join(steps)
    leads_to = "/" + posixpath.normpath(path).lstrip("/").casefold()
    if leads_to.startswith("/home/ann/"):
        assert widely(pattern, path)
    elif not path.casefold().startswith("/home/ann/") and leads_to != "/home/ann":
        assert not widely(pattern, path)


def test_plain_form_of_a_pattern_keeps_what_may_be_several_steps() -> None:
    assert fold_path("/a/**/../b", pattern=True) == "/a/**/../b"
    assert fold_path("/a/x/../b/./*", pattern=True) == "/a/b/*"


LETTERS = "aAbB. ,;/\\-\ufe0f\u2800\u00df\u0130\u017f\ufb01e\u0301\n\u200b\ufdd0"
TEXTS = st.text(alphabet=LETTERS, max_size=8)
GLOBS = st.lists(
    st.sampled_from(
        [*"aAbB./ ,;-", "*", "**", "?", "[ab]", "[!a]", "[A-b]", "{a,B}", "{,/}", "\\*", "..",
         "./", "//", "\u00df", "e\u0301", "\u0130", "\\/", "/**", "**/", "/*"]
    ),
    max_size=8,
).map("".join)  # fmt: skip
STRINGS = st.one_of(GLOBS, GLOBS.map("!".__add__), TEXTS, st.sampled_from(["/a/", "!/b/", "!!a*"]))
PATTERNS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(STRINGS, st.integers(0, 2), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "*", "**", "$.x", "$.x[*]"]), inner, max_size=2),
    ),
    max_leaves=5,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(TEXTS, st.integers(0, 2), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "X", ".x"]), inner, max_size=2),
    ),
    max_leaves=5,
)


@settings(max_examples=scaled(1_000), deadline=None)
@given(STRINGS, st.lists(TEXTS, min_size=5, max_size=5))
def test_no_text_is_taken_narrowly_and_left_widely(pattern: str, texts: list[str]) -> None:
    """Also where the text is made to fit: most others are taken by neither."""
    try:
        compile_pattern(pattern)
    except InvalidPattern:
        return
    for text in (*texts, pattern, pattern.replace("*", texts[0]), pattern.replace("?", "\u00df")):
        if narrowly(pattern, text):
            assert widely(pattern, text), text


@settings(max_examples=scaled(1_000), deadline=None)
@given(PATTERNS, st.lists(VALUES, min_size=5, max_size=5))
def test_no_value_is_taken_narrowly_and_left_widely(pattern: object, values: list[object]) -> None:
    try:
        compile_pattern(pattern)
    except InvalidPattern:
        return
    for value in values:
        if narrowly(pattern, value):
            assert widely(pattern, value), value


@given(STRINGS, TEXTS)
def test_a_negation_is_the_complement_of_the_other_reading(pattern: str, text: str) -> None:
    try:
        narrow, wide = narrowly(pattern, text), widely(pattern, text)
        negated = "!" + pattern
        assert narrowly(negated, text) is not wide
        assert widely(negated, text) is not narrow
    except InvalidPattern:
        return


def takes(pattern: object, value: object, others: list[str] | None, *, wide: bool = False) -> bool:
    reading = Reading.WIDE if wide else Reading.NARROW
    return ArgumentCompiler(reading, others).compile(pattern, "")(value, WorkBudget(value))


@pytest.mark.parametrize("text", ["", "a/b", "../x", ".env", "a, b\n", "x" * 1_000])
@pytest.mark.parametrize("pattern", ["*", "**", ["x", "*"]])
def test_a_wildcard_that_is_all_of_an_arguments_pattern_takes_every_text(
    pattern: object, text: str
) -> None:
    assert takes({"a": pattern}, {"a": text}, [])
    assert not takes({"a": pattern}, {"a": 1}, [])
    assert not takes({"a": "!*"}, {"a": text}, [])


@pytest.mark.parametrize(
    ("pattern", "value", "others", "expected"),
    [
        ({"a": "x"}, {"a": "x"}, [], True),
        ({"a": "x"}, {"a": "x", "b": 1}, [], False),
        ({"a": "x"}, {"a": "x", "b": 1}, ["b"], True),
        ({"a": "x"}, {"a": "x", "b": 1}, None, True),
        ({"a": "x"}, DefaultedObject({"a": "x", "b": 1}, ["b"]), [], True),
        ({"a": "x"}, DefaultedObject({"a": "x", "b": 1, "c": 1}, ["b"]), [], False),
        ({"a": {"b": "x"}}, {"a": {"b": "x", "c": 1}}, [], False),
        ({"a": {"b": "x"}}, {"a": {"b": "x", "c": 1}}, ["c"], True),
        ({"a": {}}, {"a": {"b": "x", "c": 1}}, [], True),
        ({"a*": "x"}, {"a": "x", "ab": "x"}, [], True),
        ({"a*": "x"}, {"a": "x", "ab": "y"}, [], False),
        ({"**": "x"}, {"a": "x"}, [], False),
        ({"$.a": "x"}, {"a": "x"}, [], False),
        ({"$.a": "x"}, {"a": "x"}, ["a"], True),
        ([{"a": "x"}, {"b": "y"}], {"a": "x", "b": "y"}, [], False),
        ([{"a": "x"}, {"a": "x", "b": "y"}], {"a": "x", "b": "y"}, [], True),
    ],
    ids=repr,
)
def test_members_that_are_not_named_are_no_others_unless_they_may_be(
    pattern: object, value: object, others: list[str] | None, expected: bool
) -> None:
    assert takes(pattern, value, others) is expected


@settings(max_examples=scaled(500), deadline=None)
@given(
    st.dictionaries(st.sampled_from(["x", "y", "*", "x*"]), PATTERNS, max_size=2),
    st.dictionaries(st.sampled_from(["x", "y", "z"]), VALUES, max_size=2),
    st.sampled_from([None, [], ["y"]]),
)
def test_what_is_let_through_by_its_arguments_is_held_back_by_them(
    pattern: dict[str, object], value: dict[str, object], others: list[str] | None
) -> None:
    try:
        taken = takes(pattern, value, others)
    except InvalidPattern:
        return
    if taken:
        assert takes(pattern, value, None, wide=True)

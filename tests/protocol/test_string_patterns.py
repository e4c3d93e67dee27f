"""Patterns of strings in capabilities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.errors import InvalidPattern
from tests.protocol.matching import LITERALS, PLAIN_SEGMENTS, SCALARS, SEGMENTS, VALUES, matches
from tests.wire import Reading, compile_pattern


@given(LITERALS)
def test_literal_matches_itself_and_nothing_longer(literal: str) -> None:
    assert matches(literal, literal)
    assert not matches(literal, literal + "x")
    assert not matches(literal, "x" + literal)


@given(PLAIN_SEGMENTS, st.lists(PLAIN_SEGMENTS))
def test_two_stars_cross_segments_and_one_does_not(first: str, more: list[str]) -> None:
    text = "/".join([first, *more])
    assert matches("**", text)
    assert matches("**/**", text)
    assert matches("*", text) is (not more)
    assert matches("x/**", f"x/{text}")
    assert matches("x/**/y", f"x/{text}/y")


@given(st.lists(SEGMENTS), SEGMENTS, st.lists(SEGMENTS))
def test_wildcards_never_reach_a_segment_that_begins_with_a_dot(
    before: list[str], hidden: str, after: list[str]
) -> None:
    for segment in (f".{hidden}", ".", ".."):
        text = "/".join([*before, segment, *after])
        for pattern in ("**", "*", "**/*", "*/**", "?*", "[!a]*", "[.]*", "{*,**}", "{a/**,**}"):
            assert not matches(pattern, text)
        assert not matches("public/**", f"public/{text}")


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        # a dot that is written is met, but no wildcard completes `..`
        (".*", ".git", True),
        ("a/.*", "a/.git", True),
        ("a/.*", "a/..", False),
        ("a/.?", "a/..", False),
        ("../*", "../x", True),
        ("*/../x", "a/../x", True),
        ("*/.../x", "a/.../x", True),
        ("{.git,src}/*", ".git/config", True),
        ("{,x}*", ".git", False),
        ("*.txt", ".txt", False),
        ("a/*.txt", "a/.txt", False),
        ("*{.txt,.md}", ".txt", False),
        ("{**,x}.txt", ".txt", False),
        ("{*{,a},x}.txt", ".txt", False),
        ("{a/**,x}.txt", "a/.txt", False),
        ("*/.git", "a/.git", True),
        ("*{/,/x/}.git", "a/.git", True),
        ("{x,}.git*", ".git", True),
        ("a?b", "a.b", True),
        ("a*", "a.b", True),
        # empty segments
        ("*", "", False),
        ("**", "", False),
        ("**/**", "", False),
        ("/**", "", False),
        ("/**", "/", True),
        ("a/*", "a/", False),
        ("a/**", "a", True),
        ("a/**/**", "a", True),
        ("a/**", "ab", False),
        ("a/**/b", "a/b", True),
        ("**/b", "b", True),
        ("**/b", "ab", False),
        ("a*", "a", True),
        # two stars that are not a whole segment are one
        ("a**", "ab", True),
        ("a**", "ab/c", False),
        ("***", "a/b", False),
        # classes
        ("[a-c]x*", "bx", True),
        ("[!a-c]x*", "bx", False),
        ("[^a-c]x*", "dx", True),
        ("[]x]*", "]", True),
        ("[a-]*", "-", True),
        (r"[\]]*", "]", True),
        ("a[+-9]b*", "a/b", False),
        ("a[+-9]b*", "a.b", True),
        ("a[!x]b", "a/b", False),
        ("[\ud7ff-\U0010ffff]*", "\ufdd0", True),
        # braces
        ("{a,b}", "a", False),
        ("{a,b}", "{a,b}", True),
        ("{a,b}*", "ax", True),
        ("{a,b}*", "cx", False),
        ("{a}*", "{a}x", True),
        ("{a,{b,c/d}}/*", "c/d/x", True),
        ("{mcp/re*,chat}", "mcp/request", True),
        ("x{,y}*z", "xz", True),
        ("a}*", "a}b", True),
        ("a,b*", "a,b", True),
        # backslashes
        (r"\**", "*x", True),
        (r"\**", "x", False),
        (r"\{a,b\}*", "{a,b}", True),
        # only where there is a wildcard
        (r"a\b", r"a\b", True),
        ("(a|b)+", "(a|b)+", True),
        ("a.c", "abc", False),
        ("?", "\n", False),
        ("?", "𝄞", True),
        ("*", "\ufdd0\ufdd1\ufdd2", True),
        ("*.b", "a\ufdd0b", False),
        # what would make several texts of one
        ("*@a.org", "x@a.org", True),
        ("*@a.org", "y@b.org,x@a.org", False),
        ("*@a.org", "y@b.org;x@a.org", False),
        ("*@a.org", "y@b.org\uff0cx@a.org", False),
        ("*@a.org", "y x@a.org", False),
        ("*@a.org", "y\u3000x@a.org", False),
        ("x@*", "x@a.org\nBcc: y@b.org", False),
        ("x@*", "x@a.org\u2028", False),
        ("x@*", "x@a.org\u202e", False),
        ("*x@[ab]*", "y,x@a", False),
        ("{a,b}?c", "a,c", False),
        ("a[!b]c", "a,c", False),
        ("docs/**", "docs/a b/c", True),
        ("docs/**", "docs/a,b", False),
        ("docs/*", "docs/a b", True),
        ("docs/*", "docs/a\x00b", False),
        ("**/x", "a b/x", True),
        ("**/x", "a;b/x", False),
        # but for what is written, and for a wildcard alone
        ("a, *", "a, b", True),
        ("a, *", "a,  b", False),
        ("*, [,;]?", "a, ;b", True),
        ("?, b*", "a, b", True),
        ("?, b*", "a; b", False),
        ("*", "a, b\n", True),
        ("**", "a/b; c", True),
        # regular expressions
        ("/b/", "abc", True),
        ("/^b/", "abc", False),
        ("/a.c/", "a\nc", True),
        ("/^c$/", "b\nc", False),
        ("/", "/", True),
        ("/x", "/x", True),
        # negation
        ("!a", "a", False),
        ("!a", "b", True),
        ("!!a", "a", True),
        ("!!!a", "a", False),
        ("!/b/", "abc", False),
        ("!a*", "b", True),
    ],
)
def test_string_pattern(pattern: str, value: str, expected: bool) -> None:
    assert matches(pattern, value) is expected


@pytest.mark.rule("7.negation")
@given(st.sampled_from(["a", "*", "**/x", "/a+/", "{a,b}?", "!a*"]), VALUES)
def test_negation_is_the_complement_among_texts(pattern: str, value: object) -> None:
    """Of the wide reading: the narrow one leaves texts that a reader would say are named."""
    excepted = compile_pattern(pattern, reading=Reading.WIDE).matches(value)
    complement = isinstance(value, str) and not excepted
    assert matches("!" + pattern, value) is complement


@pytest.mark.rule("7.negation")
@pytest.mark.parametrize("pattern", ["!6", "!*6*", "!/6/", "!{6,7}*", ["!6", "!7"], "!!!6"])
@pytest.mark.parametrize("value", [6, 6.0, 5, True, None, ["6"], {"6": "6"}])
def test_negated_text_lets_no_other_type_through(pattern: object, value: object) -> None:
    assert not matches(pattern, value)
    assert not matches({"a": pattern}, {"a": value})


@given(st.text(alphabet="ab/.*?{},[]!-\\", max_size=12), st.text(alphabet="ab/.", max_size=8))
def test_any_text_compiles_or_is_refused(pattern: str, value: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except InvalidPattern:
        return
    assert compiled.matches(value) in (True, False)


@given(st.sampled_from(["a", "*", "**", "/a/"]), SCALARS.filter(lambda v: not isinstance(v, str)))
def test_a_string_pattern_matches_only_strings(pattern: str, value: object) -> None:
    assert not matches(pattern, value)

"""Scopes of a yes: each takes its call, the narrowest first, and the preview tells them apart."""

from typing import Any

import pytest

from meup_agent.approval.inbox.preview import (
    SeenCall,
    choose_scope,
    preview_scope,
    rule_of,
    write_policy,
)
from meup_agent.approval.yeses import YesScope, scopes_of, written_scope
from meup_agent.errors import UsageError
from meup_agent.protocol.wire.payloads import Call
from meup_agent.protocol.wire.scoped_yes import MAX_YES_BYTES, ScopedYes


def call(**arguments: Any) -> Call:
    return Call("tools/call", {"name": "write", "arguments": arguments})


WRITE = call(path="/a/b/x.txt", content="one\ntwo")


def test_scopes_of_a_path_are_its_folder_and_what_is_below() -> None:
    assert [(each.arguments, each.others) for each in scopes_of(WRITE)] == [
        ({"path": "/a/b/x.txt", "content": "one\ntwo"}, ()),
        ({"path": "/a/b/*", "content": "one\ntwo"}, ()),
        ({"path": "/a/b/*"}, ("content",)),
        ({"path": "/a/b/**", "content": "one\ntwo"}, ()),
        ({"path": "/a/b/**"}, ("content",)),
        (None, ()),
    ]


@pytest.mark.parametrize(
    "value",
    [
        *("plain", "rm -rf /tmp/*", "/a/", "!x", "", "a{b,c}?", "a\nb\\", "$x", "[a]", "/a*b/"),
        *("https://a.b/c?d=e", "../x/y", "ü ∑", "a,b;c", "\\", "/", "//", "*", "**"),
        *(1, -2.5, True, {"a": {"b": "*"}}),
    ],
)
def test_exact_scope_takes_its_value_and_nothing_like_it(value: Any) -> None:
    scope = scopes_of(call(x=value))[0]
    assert scope.words == "exactly these arguments"
    assert scope.takes({"x": value})
    others: list[Any] = [f"{value}x", f"x{value}", f"{value}\n", [value], None, {"x": value}]
    others += [str(value).swapcase()] if str(value).swapcase() != value else []
    others += [str(value)] if not isinstance(value, str) else []
    assert [each for each in others if scope.takes({"x": each})] == []
    assert not scope.takes({"x": value, "y": 1})
    assert not scope.takes({})


@pytest.mark.parametrize("name", ["*", "p*", "**", "$.path", "{path,to}*", "!path", "[p]ath"])
def test_name_that_would_mean_others_is_in_no_scope(name: str) -> None:
    """A proposer chooses the names where a tool takes any, and only what it names is covered."""
    for value in ("x", "/a/b/x.txt"):
        assert [each.words for each in scopes_of(call(**{name: value}))] == ["any arguments"]
        for scope in scopes_of(call(**{name: value, "path": "/a/b"}))[:-1]:
            assert not scope.takes({"to": value, "path": "/a/b"}), scope


@pytest.mark.parametrize("value", [[1], None, "x" * 401, [], {}])
def test_value_that_no_pattern_names_alone_has_no_exact_scope(value: Any) -> None:
    assert [each.words for each in scopes_of(call(x=value))] == ["any arguments"]


def test_folder_that_would_mean_others_is_no_scope() -> None:
    for path in ("/a*/x", "a/../x", "./x", "/a/[b]/x", "/a//x", "https://h/p/x", "a b:c/x"):
        for scope in scopes_of(call(path=path)):
            assert scope.words in ("exactly these arguments", "any arguments"), path


def test_folder_in_a_command_line_is_no_scope() -> None:
    calls = [call(x=each) for each in ("cat docs/x", "/bin/sh -c a/b", "/a/$(id)/x", "/a/b&c/x")]
    calls += [call(command="/bin/ls"), call(Cmd="bin/ls", path="a")]
    for each in calls:
        assert not [s.words for s in scopes_of(each) if "folder" in s.words], each


def test_narrowest_scope_that_takes_another_call_is_chosen() -> None:
    scopes = scopes_of(WRITE)
    past = [SeenCall({"path": "/a/b/y.txt", "content": "z"}, "fulfilled", "ann")]
    assert choose_scope(scopes, past, WRITE.arguments) == 2
    assert choose_scope(scopes, [], WRITE.arguments) == 0
    # What was rejected speaks for no scope.
    assert choose_scope(scopes, [past[0]._replace(state="rejected")], WRITE.arguments) == 0


def test_preview_tells_what_it_takes_and_three_that_it_does_not() -> None:
    past = [
        SeenCall({"path": "/a/b/y.txt", "content": "z"}, "fulfilled", "ann"),
        SeenCall({"path": "/c/y.txt", "content": "z"}, "rejected", "ann"),
    ]
    found = preview_scope(scopes_of(WRITE)[2], WRITE, past)
    assert found.covered == (past[0],)
    assert found.near[0] == past[1]
    assert len(found.near) == 3
    assert found.warnings == ()


def test_preview_of_nothing_and_of_everything_warns() -> None:
    past = [SeenCall({"path": f"/{each}"}, "rejected") for each in range(6)]
    nothing = preview_scope(scopes_of(WRITE)[0], WRITE, past)
    assert nothing.warnings == ("it takes no other call that is known",)
    everything = preview_scope(scopes_of(WRITE)[-1], WRITE, past)
    assert everything.near == ()
    assert everything.warnings == (
        "it takes 6 of the calls that were rejected",
        "it takes each of the 6 other calls that are known",
        "it takes every call of this tool",
    )


def test_written_pattern_is_checked_before_it_is_sent() -> None:
    for wrong in ({"path": "/(/"}, {"path": "x" * 10_000}):
        with pytest.raises(UsageError, match="the patterns of the yes"):
            written_scope(wrong, ())
    assert len(str({"path": "x" * 10_000})) > MAX_YES_BYTES
    assert written_scope({"path": "**/x"}, "any").takes({"path": "a/b/x", "more": 1})


def kept(**more: Any) -> ScopedYes:
    usual: dict[str, Any] = {"id": "9b1c" * 8, "by": "ann", "proposal": "p", "proposer": "bot"}
    usual |= {"target": "files", "tool": "write", "form": "f", "given": 0, "until": 1, "most": 1}
    return ScopedYes(**(usual | more))


def test_yes_as_a_rule_says_no_more_than_it() -> None:
    yes = kept(arguments={"path": "/a/*"}, others=("content",))
    assert rule_of(yes).identity == {
        "allow": {
            "tool": "write",
            "arguments": {"path": "/a/*"},
            "others": ["content"],
            "target": "files",
            "proposer": "bot",
            "method": "tools/call",
            "name": "yes 9b1c9b1c of ann",
        }
    }
    text, left_out = write_policy([yes, kept(arguments={}), kept(tool="write_*", id="x")])
    assert text.count("allow:") == 1
    assert len(left_out) == 2
    assert write_policy([]) == ("", [])


def test_scope_is_shown_line_by_line_with_hostile_text_escaped() -> None:
    shown = YesScope("", {"a\x1b[2J": "x\u202ey"}, ("b\n",)).shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert len(shown.splitlines()) == 2


def test_a_yes_for_a_command_is_for_that_command_alone() -> None:
    line = call(command="git push 'a; b' | cat", description="x", timeout=5)
    for scope in scopes_of(line)[:-1]:
        assert not scope.takes({**line.arguments, "command": "rm x"}), scope
        # What is offered can be given back as it was written.
        assert scope.arguments is not None
        assert written_scope(scope.arguments, scope.others).takes(line.arguments)


@pytest.mark.parametrize(
    "pattern",
    ["git status*", "/git status/", "/^(?:git .*)\\z/", "/^(?:a|b)\\z/", "!rm", ["ls", "cat *"]],
)
def test_a_pattern_of_a_command_that_takes_more_than_it_reads_is_refused(pattern: Any) -> None:
    with pytest.raises(UsageError, match="shell"):
        written_scope({"command": pattern}, "any")

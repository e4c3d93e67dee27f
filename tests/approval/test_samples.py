"""Samples of a policy's patterns, which are what the rules make of them."""

import pytest

from meup_agent.approval import AllowRule, DenyRule, Policy, PolicyRule
from meup_agent.approval.policy.cases import samples_of
from tests.approval.test_policy import call


@pytest.mark.parametrize("pattern", ["read_*", "files.?", "{read,get}_*", "[a-z]_x", "a", "!b"])
@pytest.mark.parametrize("type", [AllowRule, DenyRule])
def test_a_rule_decides_about_its_samples_as_they_say(
    pattern: str, type: type[AllowRule | DenyRule]
) -> None:
    policy = Policy([type(pattern)])
    [(name, _, sample)] = samples_of(policy)
    assert sample.taken
    assert len(sample.left) <= 3
    for tools, takes in ((sample.taken, True), (sample.left, False)):
        for tool in tools:
            assert bool(policy.find_matching(call(tool), "bob")) is takes
    assert name == "rules[0]"


def test_each_pattern_of_arguments_has_samples() -> None:
    rule = AllowRule("read", arguments={"path": ["docs/**", "src/*.py"], "mode": "r", "size": 5})
    said = {pattern: str(sample) for _, pattern, sample in samples_of(Policy([rule]))}
    assert said.keys() == {"tool 'read'", "path 'docs/**', 'src/*.py'", "mode 'r'"}
    assert said["path 'docs/**', 'src/*.py'"].startswith("takes 'docs/a', 'src/a.py', ")


def test_a_regular_expression_has_none() -> None:
    assert list(samples_of(Policy([DenyRule("/^rm/")]))) == []


def test_a_pattern_with_an_end_that_is_open_has_three_texts_near_it() -> None:
    [(_, _, sample)] = samples_of(Policy([DenyRule("rm*")]))
    assert (len(sample.taken), len(sample.left)) == (3, 3)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            AllowRule(shell=["git log*", "ls"]),
            "takes 'git loga', 'ls', 'git loga b'; not 'ls b', 'git loga && a', 'ls && a'",
        ),
        (DenyRule("Bash", shell="rm *"), "takes 'rm a', 'rm a b', 'rm a && a'; not 'xrm a'"),
    ],
)
def test_a_rule_about_lines_has_samples_of_lines(rule: PolicyRule, said: str) -> None:
    found = {pattern: str(sample) for _, pattern, sample in samples_of(Policy([rule]))}
    [line] = [each for each in found if each.startswith("shell")]
    assert found[line] == said

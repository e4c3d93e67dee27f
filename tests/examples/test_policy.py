"""The example of a policy is good, and decides its cases."""

from meup_agent.approval import load_policy
from meup_agent.approval.cases import load_cases
from meup_agent.approval.policy_file import findings_of
from tests.programs import ROOT


def test_the_policy_is_good_and_decides_its_cases() -> None:
    cases, path = load_cases(ROOT / "examples" / "policy_cases.yaml")
    assert path is not None
    policy = load_policy(path)
    assert findings_of(policy) == []
    assert len(cases) == 5
    assert [said for each in cases if (said := each.failure(policy))] == []

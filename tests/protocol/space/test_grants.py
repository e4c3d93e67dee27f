"""Grants and revocations in any order: a right always rests on one that its giver has."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meup_agent.protocol.space.grants import GrantStore
from meup_agent.types import Grant
from tests.effort import scaled
from tests.spaces import Fact, member_capabilities

NAMES = ["a", "b", "c"]
CONFIGURED: dict[str, list[dict[str, Any]]] = {
    "a": [{"kind": "x/*"}, {"kind": "y"}],
    "b": [{"kind": "x/1", "payload": {"n": [1, 2]}}],
    "c": [],
}
KINDS: list[dict[str, Any]] = [
    {"kind": "x/*"},
    {"kind": "x/1"},
    {"kind": "x/1", "payload": {"n": 1}},
    {"kind": "y"},
    {"kind": ["x/1", "y"]},
]
SENT: list[tuple[str, dict[str, Any]]] = [
    ("x/1", {"n": 1}),
    ("x/1", {"n": 3}),
    ("x/2", {}),
    ("y", {}),
]


COMPILED = {name: member_capabilities(each) for name, each in CONFIGURED.items()}


def fresh() -> GrantStore:
    return GrantStore(COMPILED)


class Standings(RuleBasedStateMachine):
    """Grants and revocations in any order, beside what a journal would keep of them."""

    def __init__(self) -> None:
        super().__init__()
        self.standing = fresh()
        self.kept: dict[str, dict[str, Any]] = {}
        self.given: dict[str, Grant] = {}
        self.revoked: list[tuple[str, dict[str, Any]]] = []

    def keep(self, facts: tuple[Fact, ...]) -> None:
        for key, value in facts:
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value

    @rule(
        by=st.sampled_from(NAMES),
        to=st.sampled_from(NAMES),
        what=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
    )
    def grant(self, by: str, to: str, what: list[dict[str, Any]]) -> None:
        if self.standing.first_lacking(by, what) is None:
            given = Grant(f"g{len(self.given)}", by, to, tuple(what))
            self.given[given.id] = given
            self.keep(self.standing.give(given).facts)

    @precondition(lambda self: self.in_force())
    @rule(data=st.data())
    def revoke_by_id(self, data: st.DataObject) -> None:
        self.keep(self.standing.revoke(data.draw(st.sampled_from(self.in_force()))).facts)

    @rule(of=st.sampled_from(NAMES), what=st.sampled_from(KINDS))
    def revoke_by_pattern(self, of: str, what: dict[str, Any]) -> None:
        if self.standing.covered(of, [what]) and self.standing.find_broader(of, [what]) is None:
            self.keep(self.standing.revoke_covered(of, [what]).facts)
            assert not self.standing.covered(of, [what])

    def in_force(self) -> list[str]:
        return [each for each in self.given if self.standing.grant(each) is not None]

    @invariant()
    def every_grant_rests_on_what_its_granter_has(self) -> None:
        for each in self.in_force():
            grant = self.standing.grant(each)
            assert grant is not None
            assert self.standing.first_lacking(grant.by, grant.capabilities) is None

    @invariant()
    def nobody_has_what_nobody_was_configured_to_have(self) -> None:
        for kind, payload in SENT:
            if any(self.standing[name].allow(kind, payload) for name in NAMES):
                assert any(
                    member_capabilities(each).allow(kind, payload) for each in CONFIGURED.values()
                )

    @invariant()
    def a_restart_changes_nothing(self) -> None:
        again = fresh()
        assert again.restore(self.kept) == []
        for name in NAMES:
            for kind, payload in SENT:
                assert again[name].allow(kind, payload) == self.standing[name].allow(kind, payload)
        assert [again.grant(each) for each in self.given] == [
            self.standing.grant(each) for each in self.given
        ]


TestStandings = Standings.TestCase
TestStandings.settings = settings(max_examples=scaled(60), stateful_step_count=20, deadline=None)

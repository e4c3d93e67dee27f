"""Several persons of `meup up`: what takes their votes, none of them carries out alone."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Fulfillment
from meup_agent.approval import QuorumRule
from meup_agent.cli.up.plan import person_capabilities
from meup_agent.errors import Refused
from meup_agent.protocol.capability import compile_capabilities
from tests.cli.commands import exit_codes
from tests.cli.participants import variables_printed
from tests.cli.processes import meup, up
from tests.cli.test_up_servers import SERVERS, SMALL, configure, decide
from tests.patience import PATIENCE

QUORUM = """
rules:
  - quorum: {tool: "add", arguments: {a: 1}, of: 2, among: [ann, bob], name: both}
end: true
"""


def rule(tool: str | list[str] | None = None, **given: Any) -> QuorumRule:
    return QuorumRule(tool, of=1, among=["ann"], **given)


CASES: list[tuple[list[QuorumRule], set[str], set[str]]] = [
    ([], {"deploy", "other"}, set()),
    ([rule("deploy*")], {"other"}, {"deploy", "deploy_now", "Deploy", "de\u200bploy"}),
    ([rule(["deploy", "drop"])], {"other", "deploy_x"}, {"deploy", "drop", "DROP"}),
    ([rule("deploy"), rule("rm", arguments={"path": "/x"})], {"other"}, {"deploy", "rm"}),
    ([rule("*")], set(), {"deploy", "other"}),
    # What cannot be written as its opposite takes all.
    ([rule("!read_*")], set(), {"read_x", "deploy"}),
    ([rule("d{e,f}*")], set(), {"other"}),
    ([rule("/^deploy/")], set(), {"other"}),
    ([rule(method="tools/*")], set(), {"other"}),
    ([rule(method="resources/subscribe")], {"deploy"}, set()),
]


@pytest.mark.parametrize(("rules", "may", "may_not"), CASES)
def test_what_takes_votes_is_carried_out_by_no_person_alone(
    rules: list[QuorumRule], may: set[str], may_not: set[str]
) -> None:
    capabilities = compile_capabilities(person_capabilities(rules))

    def allowed(method: str, tool: str = "") -> bool:
        return capabilities.allow("mcp/request", {"method": method, "params": {"name": tool}})

    assert {each for each in may | may_not if allowed("tools/call", each)} == may
    assert not any(allowed("Tools/Call", each) for each in may_not)
    assert allowed("dev.meup/vote")
    subscribes = any(each.method == "resources/subscribe" for each in rules)
    assert allowed("resources/subscribe") == (not subscribes)
    assert capabilities.allow("mcp/reject", {"reason": "unsafe"})


@pytest.mark.skipif(sys.platform == "win32", reason="`meup up` needs POSIX")
def test_person_with_a_program_of_its_own_does_not_go_past_the_votes(
    tmp_path: Path, state: dict[str, str]
) -> None:
    configure(tmp_path, calc=SMALL)
    (tmp_path / "policy.yaml").write_text(QUORUM)
    options = ("--person", "ann", "--person", "bob", "--policy", "policy.yaml")
    with up(tmp_path, state, *SERVERS, *options) as process:
        process.until("meup inbox list")
        assert "add a quorum with of: 1 for the same tools behind it" in process.err
        process.until("as 'reviewer'")
        process.until("is 'calc' in the space 'mcp'", stream="err")
        port = re.search(r"meup env \w+ --port (\d+)", process.out)
        assert port is not None
        people = {
            name: state | variables_printed(name, "--port", port[1], variables=state)
            for name in ("agent", "ann", "bob")
        }

        async def work() -> None:
            async with (
                Agent("agent").join(
                    people["agent"]["MEUP_URL"], space="mcp", token=people["agent"]["MEUP_TOKEN"]
                ) as space,
                space.propose("calc", "add", {"a": 1, "b": 2}) as proposal,
            ):
                ann = people["ann"]
                run = partial(meup, "fulfill", proposal.id, variables=ann)
                assert (await anyio.to_thread.run_sync(run)).returncode != exit_codes.OK
                url, token = ann["MEUP_URL"], ann["MEUP_TOKEN"]
                async with Agent("ann").join(url, space="mcp", token=token) as own:
                    with pytest.raises(Refused):
                        await own.request("calc", "tools/call", {"name": "add", "arguments": {}})
                for name in ("ann", "bob"):
                    await decide(people[name], "inbox vote", "approve")
                with anyio.fail_after(PATIENCE):
                    outcome = await proposal.outcome()
                assert isinstance(outcome, Fulfillment)
                assert outcome.by == "reviewer"

        anyio.run(work)

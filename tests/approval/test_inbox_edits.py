"""Edits of a person in an inbox: judged by the rules of the reviewers that ask."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.errors import NotOffered, Refused, RequestError
from tests.approval.test_decider import hear
from tests.approval.test_inbox_rules import office, rewrite, ruled, wiping
from tests.interaction.people import InMemory, Meeting

POLICY = """
rules:
  - deny: {tool: wipe, arguments: {disk: system}, name: never, explain: "it holds the system"}
  - allow: {tool: wipe, arguments: {disk: scratch}, name: scratch}
  - quorum: {tool: wipe, arguments: {disk: shared}, of: 2, among: [second, deep], name: several}
  - ask: {tool: wipe, name: by hand}
end: true
"""

UNFIT: dict[str, Any] = {"disk": 7}


@pytest.mark.rule("4.4.edits_judged")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"disk": "system"}, "rule 'never' of 'reviewer': it holds the system"),
        ({"disk": "shared"}, "rule 'several' of 'reviewer'"),
        (UNFIT, "rule 'schema' of 'reviewer': The tool does not take these arguments"),
    ],
    ids=["denied", "for votes", "unfit"],
)
async def test_an_edit_that_the_reviewers_rules_do_not_let_pass_runs_nowhere(
    meeting: Meeting, path: Path, arguments: dict[str, Any], words: str
) -> None:
    async with wiping(meeting, path) as (o, proposal, item):
        with o.proposer.watch() as envelopes:
            with pytest.raises(Refused, match=words):
                await o.inboxes["mallory"].approve(item, arguments)
            # It waits again, and as it was proposed it may run.
            assert o.item("mallory") is item
            assert await o.inboxes["mallory"].approve(item) is not None
            request = await hear(envelopes, lambda e: proposal.id in e.correlation)
            assert request.payload["params"]["arguments"] == {"disk": "old"}
            assert await proposal.result() == "old"


@pytest.mark.rule("4.4.edits_judged")
async def test_an_edit_passes_no_limit_that_is_full(meeting: Meeting, path: Path) -> None:
    await anyio.Path(path).write_text(
        "rules:\n"
        "- limit: {tool: wipe, arguments: {disk: 'tape*'}, count: 1, every: 1h, then: deny,"
        " name: tapes}\n"
        "- ask: {tool: wipe}\n"
        "end: true\n"
    )
    async with (
        office(meeting, "mallory", policy=path) as o,
        o.proposer.propose("tools", "wipe", {"disk": "tape1"}) as first,
    ):
        counted = await o.until("mallory", ruled)
        async with o.proposer.propose("tools", "wipe", {"disk": "old"}) as second:
            inbox = o.inboxes["mallory"]
            changes = inbox.changes()
            while not (found := [each for each in inbox.items if each.id == second.id]):
                await anext(changes)
            [other] = found
            with pytest.raises(Refused, match="rule 'tapes' of 'reviewer'"):
                await inbox.approve(other, {"disk": "tape2"})
            # The one that was let pass is itself no call too many.
            assert await inbox.approve(counted, {"disk": "tape3"}) is not None
            assert await first.result(accept_edits=True) == "tape3"


@pytest.mark.rule("4.4.edits_judged")
@pytest.mark.parametrize("disk", ["scratch", "older"], ids=["allowed", "asked"])
async def test_an_edit_left_to_people_runs(meeting: Meeting, path: Path, disk: str) -> None:
    async with wiping(meeting, path) as (o, proposal, item):
        done = await o.inboxes["mallory"].approve(item, {"disk": disk})
        assert done is not None
        assert await proposal.result(accept_edits=True) == disk


@pytest.mark.rule("4.4.edits_judged")
@pytest.mark.usefixtures("changes_at_once")
async def test_an_edit_is_judged_by_the_rules_of_the_moment(meeting: Meeting, path: Path) -> None:
    async with wiping(meeting, path) as (o, _, item):
        rewrite(path, POLICY.replace("disk: system", "disk: older"))
        with pytest.raises(Refused, match="never"):
            await o.inboxes["mallory"].approve(item, {"disk": "older"})


@pytest.mark.rule("4.4.edits_judged")
async def test_without_an_answer_no_edit_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any, **options: Any) -> Any:
        await anyio.sleep_forever()

    monkeypatch.setattr("meup_agent.approval.policy.decider.Decider.judge", never)
    monkeypatch.setattr("meup_agent.approval.reviewer.methods.JUDGE_SECONDS", 0.1)
    async with wiping(InMemory(), path) as (o, proposal, item):
        with pytest.raises(
            NotOffered, match=r"'(reviewer|tools)', who may decide, has not judged it"
        ):
            await o.inboxes["mallory"].approve(item, {"disk": "older"})
        assert o.item("mallory") is item
        assert proposal.state.is_pending


async def test_the_reviewer_judges_only_what_waits_there(meeting: Meeting, path: Path) -> None:
    async with office(meeting, "mallory", policy=path) as o:
        async with o.proposer.propose("tools", "wipe", {"disk": "old"}) as proposal:
            await o.until("mallory", ruled)
            about = {"proposal": proposal.id, "proposer": "proposer", "arguments": {"disk": "x"}}
            said = await o.spaces["mallory"].request("reviewer", "dev.meup/judge", about)
            assert (said["verdict"], said["rule"]["name"]) == ("ask", "by hand")
            for wrong in ({"proposal": "other"}, {"proposer": "tools"}, {"digest": "sha256:0"}):
                with pytest.raises(RequestError):
                    await o.spaces["mallory"].request("reviewer", "dev.meup/judge", about | wrong)
        changes = o.inboxes["mallory"].changes()
        while o.item("mallory") is not None:
            await anext(changes)
        with pytest.raises(RequestError, match=r"withdrawn|waits here"):
            await o.spaces["mallory"].request("reviewer", "dev.meup/judge", about)

"""Check of edits: which reviewers judge them, and that no proposer can keep one from it."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Request
from meup_agent.approval import Reviewer
from meup_agent.approval.reviewer.methods import check_edit
from meup_agent.errors import MeupError, NotOffered, Refused
from tests.approval.test_inbox_edits import POLICY as POLICY
from tests.approval.test_inbox_rules import Office, office, ruled, there, wiping
from tests.interaction.people import EVERYTHING, InMemory, Meeting, join

pytestmark = pytest.mark.rule("4.4.edits_judged")

LIST: dict[str, Any] = {"kind": "mcp/request", "payload": {"method": "tools/list"}}
DENIED = {"disk": "system"}
ALLOWED = {"disk": "scratch"}


def told_nothing(waiting: list[Any], now: float) -> dict[str, Any]:
    """The answer of a reviewer that has no room for the rules of what waits."""
    return {"proposals": [], "omitted": len(waiting)}


async def check_denied(o: Office, **options: Any) -> None:
    """An edit runs that the policy allows, and none that it denies."""
    for edited, runs in ((DENIED, False), (ALLOWED, True)):
        async with o.proposer.propose("tools", "wipe", {"disk": "old"}, **options) as proposal:
            item = await o.until("mallory", lambda item: item.id == proposal.id)
            if runs:
                assert await o.inboxes["mallory"].approve(item, edited) is not None
                assert await proposal.result(accept_edits=True) == "scratch"
            else:
                with pytest.raises(Refused, match="the rule 'never' of 'reviewer'"):
                    await o.inboxes["mallory"].approve(item, edited)
                assert proposal.state.is_pending


def with_reviewer(*capabilities: dict[str, Any]) -> InMemory:
    """A space in which the reviewer has these capabilities, and all others every one."""
    everyone = dict.fromkeys(("tools", "proposer", "mallory"), EVERYTHING)
    return InMemory({**everyone, "reviewer": list(capabilities)})


CALLS: dict[str, Any] = {"kind": "mcp/request", "payload": {"method": "tools/call"}}


@pytest.mark.parametrize(
    "may",
    [
        {"kind": "mcp/reject"},
        {"kind": "mcp/reject", "to": ["proposer"]},
        {**CALLS, "to": ["tools"]},
    ],
    ids=["rejects", "rejects its proposer", "carries out at its target"],
)
async def test_a_reviewer_with_part_of_the_rights_judges_edits(path: Path, may: Any) -> None:
    async with office(with_reviewer(LIST, may), "mallory", policy=path) as o:
        await check_denied(o)


async def test_a_reviewer_that_may_carry_out_what_it_was_edited_to_judges_it(path: Path) -> None:
    denied = {"method": "tools/call", "params": {"name": "wipe", "arguments": DENIED}}
    meeting = with_reviewer(LIST, {"kind": "mcp/request", "payload": denied})
    async with wiping(meeting, path, until=there) as (o, proposal, item):
        with pytest.raises(Refused, match="the rule 'never' of 'reviewer'"):
            await o.inboxes["mallory"].approve(item, DENIED)
        assert proposal.state.is_pending


@pytest.mark.parametrize(
    ("name", "value"),
    [("reviewer.describe_all", told_nothing), ("methods.MAX_HELD", 0)],
    ids=["its rule is not known", "a flood has displaced it"],
)
async def test_an_edit_is_judged_although(
    meeting: Meeting, path: Path, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"meup_agent.approval.reviewer.{name}", value)
    async with office(meeting, "mallory", policy=path) as o:
        await check_denied(o)


async def test_absent_targets_hide_no_reviewer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.methods.MAX_DIRECTORIES", 3)
    async with office(InMemory(), "mallory", policy=path) as o, AsyncExitStack() as stack:
        for number in range(4):
            ghost = o.proposer.propose(f"ghost{number}", "wipe", {"disk": "old"})
            await stack.enter_async_context(ghost)
        proposal = await stack.enter_async_context(
            o.proposer.propose("tools", "wipe", {"disk": "old"}, ttl=60)
        )
        # Its deadline makes it the first one.
        item = await o.until("mallory", lambda item: item.id == proposal.id and item.rule)
        with pytest.raises(Refused, match="never"):
            await o.inboxes["mallory"].approve(item, DENIED)


async def test_a_proposal_for_others_is_judged_by_no_reviewer(meeting: Meeting, path: Path) -> None:
    async with (
        office(meeting, "mallory", policy=path) as o,
        o.proposer.propose("tools", "wipe", {"disk": "old"}, to="mallory"),
    ):
        item = await o.until("mallory", lambda _: True)
        done = await o.inboxes["mallory"].approve(item, DENIED)
        assert done is not None
        assert done.result(accept_edits=True) == "system"


async def test_while_the_reviewer_is_away_nothing_runs_edited(meeting: Meeting, path: Path) -> None:
    connector, token = meeting.connector("reviewer"), meeting.token("reviewer")
    async with office(meeting, "mallory", policy=None) as o:
        inbox = o.inboxes["mallory"]
        async with o.proposer.propose("tools", "wipe", {"disk": "old"}) as proposal:
            async with Reviewer(path).join(connector, token=token):
                item = await o.until("mallory", ruled)
            await o.until("mallory", lambda item: item.rule is None)
            with pytest.raises(NotOffered, match=r"'reviewer', whose rules .* is not here"):
                await inbox.approve(item, ALLOWED)
            async with Reviewer(path).join(connector, token=token):
                await o.until("mallory", ruled)
                with pytest.raises(Refused, match="never"):
                    await inbox.approve(item, DENIED)
                assert await inbox.approve(item, ALLOWED) is not None
            assert await proposal.result(accept_edits=True) == "scratch"


async def test_an_edit_must_pass_both_rules(meeting: Meeting, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "rules: [{deny: {tool: wipe, arguments: {disk: scratch}, name: not that}}]\nend: true\n"
    )
    deep = Reviewer(other).join(meeting.connector("deep"), token=meeting.token("deep"))
    async with deep, wiping(meeting, path) as (o, proposal, item):
        for edited, said in ((DENIED, "'never' of 'reviewer'"), (ALLOWED, "'not that' of 'deep'")):
            with pytest.raises(Refused, match=said):
                await o.inboxes["mallory"].approve(item, edited)
        assert proposal.state.is_pending
        assert await o.inboxes["mallory"].approve(item, {"disk": "spare"}) is not None


@asynccontextmanager
async def pretender(meeting: InMemory, name: str, answer: Any) -> AsyncGenerator[list[str]]:
    """A participant that answers as a reviewer, and the edits that it was asked about."""
    agent, asked = Agent(name), list[str]()

    @agent.on_request("dev.meup/waiting")
    async def list_nothing() -> dict[str, Any]:
        return {"proposals": [], "omitted": 0}

    @agent.on_request("dev.meup/judge")
    async def judge(request: Request) -> Any:
        asked.append(request.params["arguments"]["disk"])
        return answer

    async with join(meeting, agent):
        yield asked


@pytest.mark.parametrize("answer", [{"verdict": "allow"}, {"verdict": "ask"}])
async def test_the_yes_of_another_one_outweighs_no_reviewer(path: Path, answer: Any) -> None:
    meeting = InMemory()
    async with (
        pretender(meeting, "deep", answer) as asked,
        office(meeting, "mallory", policy=path) as o,
    ):
        await check_denied(o)
        # The one that was denied by the other need not have been asked about.
        assert asked[-1] == "scratch"


@pytest.mark.parametrize("answer", [{}, {"verdict": "quorum"}, {"verdict": ["allow"]}, "allow", 1])
async def test_an_answer_that_is_no_yes_stops_the_edit(answer: Any) -> None:
    meeting = InMemory()
    async with pretender(meeting, "deep", answer):
        async with wiping(meeting, None, until=there) as (o, proposal, item):
            with pytest.raises(MeupError):
                await o.inboxes["mallory"].approve(item, ALLOWED)
            assert proposal.state.is_pending
            assert o.item("mallory") is item


async def test_silence_about_an_edit_stops_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.methods.JUDGE_SECONDS", 0.1)
    silent = Agent("deep")

    @silent.on_request("dev.meup/judge")
    async def think() -> None:
        await anyio.sleep_forever()

    meeting = InMemory()
    async with join(meeting, silent), wiping(meeting, path, until=there) as (o, proposal, item):
        # On a machine that stood still for so long, one of the others is silent as well.
        with pytest.raises(
            NotOffered, match=r"'(deep|tools|reviewer)', who may decide, has not judged it"
        ):
            await o.inboxes["mallory"].approve(item, ALLOWED)
        assert proposal.state.is_pending
        assert await o.inboxes["mallory"].approve(item) is not None


async def test_who_may_not_reach_the_judge_edits_nothing(path: Path) -> None:
    meeting = InMemory(
        {
            "tools": [{"kind": "mcp/response"}],
            "proposer": EVERYTHING,
            "reviewer": [LIST, {"kind": "mcp/reject"}],
            "mallory": [LIST, CALLS],
        }
    )
    async with wiping(meeting, path, until=there) as (o, proposal, item):
        with pytest.raises(NotOffered, match=r"may not send dev.meup/judge to 'reviewer'"):
            await o.inboxes["mallory"].approve(item, ALLOWED)
        assert proposal.state.is_pending


@pytest.mark.parametrize("dialect", ["meup/v0.2", "mew/v0.4", "mew/v0.3"])
async def test_a_dialect_that_names_the_executor_is_judged(path: Path, dialect: str) -> None:
    async with wiping(InMemory(), path, until=there) as (o, proposal, _):
        space = o.spaces["mallory"]
        published = space.proposals.get(proposal.id).envelope.replace(
            protocol=dialect, to=("tools",)
        )
        with pytest.raises(Refused, match="the rule 'never' of 'reviewer'"):
            await check_edit(space, published, DENIED)

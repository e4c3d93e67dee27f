"""Facts that an inbox learns of others: the rule that asks, votes, and the tools' own words."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from meup_agent import Agent, Proposal, ProposalHandle, Rejection, Request, Space
from meup_agent.approval import Inbox, InboxItem, ItemArrived, Reviewer, Verb
from meup_agent.errors import AlreadyDecided, AlreadyInProgress, NotOffered, RequestError
from tests.interaction.people import PARTICIPANTS, InMemory, Meeting, ended, join
from tests.interaction.views import Tape, session_of
from tests.patience import PATIENCE

VIRTUAL = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["virtual"]
)

POLICY = """
rules:
  - quorum: {tool: deploy, of: 2, among: [second, deep], name: four eyes}
  - ask: {tool: wipe, name: by hand, ttl: 1h}
end: true
"""


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def tools() -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def deploy(version: int) -> int:
        return version

    @agent.tool(destructive=True)
    async def wipe(disk: str) -> str:
        return disk

    @agent.tool(read_only=True)
    async def look(disk: str) -> str:
        return disk

    return agent


class Office:
    """Inboxes of several people, beside a reviewer and a proposer."""

    def __init__(self) -> None:
        self.inboxes: dict[str, Inbox] = {}
        self.spaces: dict[str, Space] = {}
        self.proposer: Space

    def item(self, who: str) -> InboxItem | None:
        return next(iter(self.inboxes[who].items), None)

    async def until(self, who: str, condition: Callable[[InboxItem], object]) -> InboxItem:
        """The first item of somebody's inbox, once it is as it should be."""
        changes = self.inboxes[who].changes()
        while (item := self.item(who)) is None or not condition(item):
            await anext(changes)
        return item


@asynccontextmanager
async def office(
    meeting: Meeting,
    *people: str,
    policy: Path | None,
    proposer: Agent | str = "proposer",
    seconds: float = PATIENCE,
) -> AsyncGenerator[Office]:
    made = Office()
    with anyio.fail_after(seconds):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(join(meeting, tools()))
            if policy is not None:
                connector, token = meeting.connector("reviewer"), meeting.token("reviewer")
                reviewer = Reviewer(policy).join(connector, token=token)
                await stack.enter_async_context(reviewer)
            made.proposer = await stack.enter_async_context(join(meeting, proposer))
            for name in people:
                space = await stack.enter_async_context(join(meeting, name))
                made.spaces[name] = space
                made.inboxes[name] = await stack.enter_async_context(Inbox(space))
            yield made


def ruled(item: InboxItem) -> bool:
    return item.rule is not None


def there(_: InboxItem) -> bool:
    return True


@asynccontextmanager
async def wiping(
    meeting: Meeting,
    policy: Path | None,
    *,
    until: Callable[[InboxItem], object] = ruled,
    person: str = "mallory",
) -> AsyncGenerator[tuple[Office, ProposalHandle, InboxItem]]:
    """A person that is asked whether a disk may be wiped."""
    async with (
        office(meeting, person, policy=policy) as o,
        o.proposer.propose("tools", "wipe", {"disk": "old"}) as proposal,
    ):
        yield o, proposal, await o.until(person, until)


async def test_rule_that_asks_for_a_word_takes_no_other_yes(meeting: Meeting, path: Path) -> None:
    rewrite(path, "rules: [{ask: {tool: wipe, confirm: word}}]\nend: true\n")
    async with wiping(meeting, path) as (o, proposal, item):
        inbox = o.inboxes["mallory"]
        for word in ("", "yes"):
            with pytest.raises(NotOffered, match="takes the word 'approve'"):
                await inbox.approve(item, word=word)
        (outcome,) = await inbox.approve_all([item])
        assert isinstance(outcome.error, NotOffered)
        with pytest.raises(NotOffered, match="no yes"):
            inbox.check_yes(item)
        assert proposal.state.is_pending
        assert await inbox.approve(item, word="Approve ") is not None
        assert await proposal.result() == "old"


async def test_approving_is_a_vote_where_a_reviewer_counts_it(meeting: Meeting, path: Path) -> None:
    async with office(meeting, "second", "deep", "mallory", policy=path) as o:
        async with o.proposer.propose("tools", "deploy", {"version": 7}) as proposal:
            mine, yours = await o.until("second", ruled), await o.until("deep", ruled)
            assert mine.may == {Verb.VOTE, Verb.REJECT}
            assert mine.rule is not None
            assert (mine.rule.name, mine.rule.of) == ("four eyes", 2)
            assert set(mine.rule.among) == {"second", "deep"}
            assert "deploy" in mine.rule.text
            assert await o.inboxes["second"].approve(mine) is None
            assert mine.votes == {"second": "approve"}
            # Others see it, and it waits for them on.
            await o.until("deep", lambda item: item.votes == {"second": "approve"})
            with pytest.raises(NotOffered, match="as it was proposed"):
                await o.inboxes["deep"].approve(yours, {"version": 8})
            await o.inboxes["deep"].vote(yours, approve=True, explanation="go")
            assert await proposal.result() == 7
        # The second one may not have heard yet of the answer that the proposer has.
        with pytest.raises((AlreadyDecided, AlreadyInProgress)):
            await o.inboxes["second"].vote(mine, approve=False)


async def test_a_vote_may_be_changed_until_it_counts(meeting: Meeting, path: Path) -> None:
    async with office(meeting, "second", policy=path) as o:
        async with o.proposer.propose("tools", "deploy", {"version": 7}, to="reviewer") as proposal:
            item, inbox = await o.until("second", ruled), o.inboxes["second"]
            assert (await inbox.vote(item, approve=True)).votes == {"second": "approve"}
            await inbox.vote(item, approve=False, explanation="not on a Friday")
            outcome = await ended(proposal, Rejection)
            assert "not on a Friday" in await outcome.explanation()


VOTES = [{"kind": "mcp/request", "payload": {"method": ["dev.meup/vote", "dev.meup/waiting"]}}]


@pytest.mark.parametrize("to", ["reviewer", ()])
async def test_a_voter_that_may_only_vote_is_asked(path: Path, to: str | tuple[str, ...]) -> None:
    others = ("tools", "reviewer", "proposer", "deep")
    meeting = InMemory({name: [{"kind": "*"}] for name in others} | {"second": VOTES})
    async with office(meeting, "second", "deep", policy=path) as o:
        async with o.proposer.propose("tools", "deploy", {"version": 7}, to=to) as proposal:
            item = await o.until("second", ruled)
            assert item.may == {Verb.VOTE}
            await o.inboxes["second"].approve(item)
            await o.inboxes["deep"].approve(await o.until("deep", ruled))
            assert await proposal.result() == 7


async def test_carrying_out_past_a_quorum_is_dangerous(meeting: Meeting, path: Path) -> None:
    async with office(meeting, "mallory", policy=path) as o:
        async with o.proposer.propose("tools", "deploy", {"version": 7}):
            item = await o.until("mallory", ruled)
            assert item.may == {Verb.APPROVE, Verb.REJECT}
            assert any("goes past the votes of" in each for each in item.danger)
            with pytest.raises(NotOffered, match="does not count"):
                await o.inboxes["mallory"].vote(item, approve=True)


async def test_rejection_is_a_vote_against_it(meeting: Meeting, path: Path) -> None:
    rewrite(path, POLICY.replace("[second, deep]", "[second, deep, mallory]"))
    async with office(meeting, "second", "deep", policy=path) as o:
        async with o.proposer.propose("tools", "deploy", {"version": 7}, to="reviewer") as proposal:
            await o.inboxes["second"].reject(await o.until("second", ruled), "unsafe", "not now")
            item = await o.until("deep", lambda item: item.votes)
            assert item.votes == {"second": "reject"}
            await o.inboxes["deep"].reject(item, "disagree")
            rejection = await ended(proposal, Rejection)
            assert rejection.by == "reviewer"
            assert "second: not now; deep: disagree" in (await rejection.explanation() or "")


async def test_the_rule_that_asks_is_told(meeting: Meeting, path: Path) -> None:
    async with office(meeting, "second", policy=path) as o:
        async with o.proposer.propose("tools", "wipe", {"disk": "a"}, ttl=None, to="reviewer"):
            item = await o.until("second", ruled)
            assert item.rule is not None
            assert (item.rule.reviewer, item.rule.name) == ("reviewer", "by hand")
            assert item.may == {Verb.APPROVE, Verb.REJECT}
            assert item.deadline == item.rule.deadline is not None


async def test_what_a_tool_says_of_itself_is_shown(meeting: Meeting) -> None:
    async with office(meeting, "second", policy=None) as o:
        async with o.proposer.propose("tools", "wipe", {"disk": "a"}):
            item = await o.until("second", lambda item: item.tool_facts)
            assert item.danger == ("tools marks it as destructive",)
            assert item.tool_facts is not None
            assert "may destroy" in item.tool_facts.hints
        async with o.proposer.propose("tools", "look", {"disk": "a"}):
            assert (await o.until("second", lambda item: item.tool == "look")).danger == ()
        async with o.proposer.propose("tools", "nothing", {}):
            item = await o.until("second", lambda item: item.tool == "nothing")
            assert item.danger == ("tools has no such tool",)


@pytest.mark.usefixtures("changes_at_once")
async def test_a_vote_that_does_not_count_says_why(
    meeting: Meeting, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before the reviewer holds what waits against the changed file.
    monkeypatch.setattr("meup_agent.approval.reviewer.reviewer.POLL_SECONDS", 3_600.0)
    async with office(meeting, "second", policy=path) as o:
        async with o.proposer.propose("tools", "deploy", {"version": 7}):
            item, inbox = await o.until("second", ruled), o.inboxes["second"]
            rewrite(path, POLICY.replace("[second, deep]", "[deep, mallory]"))
            async with o.proposer.propose("tools", "deploy", {"version": 8}):
                changes = inbox.changes()
                async for change in changes:
                    if isinstance(change, ItemArrived) and change.item.arguments["version"] == 8:
                        break
                other = inbox.items[-1]
                while other.rule is None:
                    await anext(changes)
                with pytest.raises(NotOffered):
                    await inbox.vote(other, approve=True)
            # That of before is counted by the rule that it was shown with.
            assert (await inbox.vote(item, approve=True)).votes == {"second": "approve"}


async def test_a_reviewer_that_refuses_a_vote_is_heard(meeting: Meeting) -> None:
    stubborn = Agent("reviewer")
    entry: dict[str, Any] = {"kind": "quorum", "of": 1, "among": ["second"], "votes": {}}

    @stubborn.on_request("dev.meup/vote")
    async def vote(request: Request) -> None:
        raise RequestError(-32602, f"no vote of {request.params['proposer']} counts")

    @stubborn.on_request("dev.meup/waiting")
    async def waiting() -> dict[str, Any]:
        return {"proposals": [entry]}

    @stubborn.on_proposal
    async def wait(proposal: Proposal) -> None:
        assert proposal.tool

    async with office(meeting, "second", policy=None) as o, join(meeting, stubborn):
        async with o.proposer.propose("tools", "deploy", {"version": 7}) as proposal:
            entry.update(proposal=proposal.id, proposer="proposer", rule={"name": "mine"})
            item = await o.until("second", ruled)
            with pytest.raises(RequestError, match="no vote of proposer"):
                await o.inboxes["second"].vote(item, approve=True)
            assert item.left is None


@pytest.mark.parametrize("meeting", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        ("ask: {tool: deploy, name: other}", ("reviewer", "four eyes")),
        ("quorum: {tool: deploy, of: 1, among: [second, mallory], name: other}", ("deep", "other")),
    ],
    ids=["asks", "counts, too"],
)
async def test_of_two_reviewers_the_first_that_counts_votes_is_shown(
    meeting: Meeting, path: Path, tmp_path: Path, rule: str, shown: tuple[str, str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"rules: [{{{rule}}}]\nend: true\n")
    async with office(meeting, "second", policy=path) as o:
        another = Reviewer(other).join(meeting.connector("deep"), token=meeting.token("deep"))
        async with another, o.proposer.propose("tools", "deploy", {"version": 7}):
            item = await o.until("second", ruled)
            await o.inboxes["second"].settle()
            item = await o.until(
                "second", lambda item: item.rule is not None and item.rule.reviewer == shown[0]
            )
            assert item.rule is not None
            assert (item.rule.reviewer, item.rule.name) == shown
            assert item.may == {Verb.VOTE, Verb.REJECT}


def questions(tape: Tape) -> int:
    """Number of times that a reviewer was asked what waits, since the last time."""
    asked = tape.calls("dev.meup/waiting")
    tape.envelopes.clear()
    return len(asked)


@VIRTUAL
async def test_inboxes_do_not_make_each_other_ask(path: Path) -> None:
    people, tape = ("second", "deep", "mallory"), Tape()
    async with office(InMemory(), *people, policy=path, seconds=3_600) as o:
        session_of(o.proposer).watchers.listen(tape)
        async with o.proposer.propose("tools", "deploy", {"version": 7}, ttl=None):
            mine = await o.until("second", ruled)
            # For a while the reviewer may not know its rule yet.
            await anyio.sleep(60)
            assert 3 < questions(tape) < 50
            # From then on each asks four times a minute: a policy file may change.
            await anyio.sleep(607)  # not as they would ask anyhow
            assert 60 < questions(tape) <= 3 * 41
            # A vote makes all of them look, once or twice.
            await o.inboxes["second"].vote(mine, approve=True)
            await anyio.sleep(1)
            theirs = o.item("deep")
            assert theirs is not None
            assert theirs.votes == {"second": "approve"}
            await anyio.sleep(10)
            assert 3 <= questions(tape) <= 3 * 3


@pytest.mark.rule("5.reviewers.flood")
@VIRTUAL
async def test_refused_votes_do_not_make_inboxes_ask(path: Path) -> None:
    tape = Tape()
    proposes = {"proposer": [{"kind": "mcp/proposal"}, {"kind": "mcp/request"}]}
    meeting = InMemory({**PARTICIPANTS, **proposes})
    async with office(meeting, "second", policy=path, seconds=3_600) as o:
        session_of(o.proposer).watchers.listen(tape)
        async with o.proposer.propose("tools", "deploy", {"version": 7}, ttl=None) as proposal:
            await o.until("second", ruled)
            await anyio.sleep(60)
            questions(tape)
            about = {"proposal": proposal.id, "proposer": "proposer", "vote": "approve"}
            for _ in range(100):
                with pytest.raises(RequestError, match="never counts"):
                    await o.proposer.request("reviewer", "dev.meup/vote", about)
                await anyio.sleep(0.3)
            assert questions(tape) <= 3


@pytest.mark.thorough
@VIRTUAL
async def test_a_long_list_is_asked_for_less_often_while_proposals_come(path: Path) -> None:
    tape = Tape()

    async def asked_within(o: Office, seconds: int) -> int:
        """Questions while a proposal comes each half second."""
        questions(tape)
        for _ in range(2 * seconds):
            async with o.proposer.propose("tools", "wipe", {"disk": "b"}, ttl=None):
                await anyio.sleep(0.5)
        return questions(tape)

    async with (
        office(InMemory(), "second", policy=path, seconds=36_000) as o,
        AsyncExitStack() as s,
    ):
        session_of(o.proposer).watchers.listen(tape)
        few = await asked_within(o, 20)
        for _ in range(400):
            await s.enter_async_context(
                o.proposer.propose("tools", "wipe", {"disk": "a"}, ttl=None)
            )
        many = await asked_within(o, 20)
    assert many <= 20 / 0.8 + 1 < few

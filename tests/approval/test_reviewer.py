"""A reviewer and its reminders: hours pass in no time, and no silence lets a call through."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from meup_agent import Rejection, Space
from meup_agent.approval import Reviewer
from meup_agent.errors import ConfigurationError, RequestError
from meup_agent.protocol.wire.membership import MAX_LISTED
from tests.interaction.cast import noting_adder
from tests.interaction.people import InMemory, Notes, ended, join
from tests.interaction.views import Tape, session_of
from tests.virtual_time import anyio_backend as anyio_backend
from tests.wire import kinds, payloads

POLICY = "rules: [{ask: {tool: add, ttl: 10m, remind: 2m, name: by hand}}]\nend: true\n"
ALLOW = "rules: [{allow: {tool: add}}]\nend: true\n"
DENY = "rules: [{deny:  {tool: add}}]\nend: true\n"


@pytest.fixture(autouse=True)
def poll_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll seldom: hours of looking twice a second took a second of CPU each."""
    monkeypatch.setattr("meup_agent.approval.reviewer.reviewer.POLL_SECONDS", 15.0)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_a_good_file_there_is_no_reviewer(path: Path) -> None:
    path.write_text("rules: [{quorum: {tool: deploy, of: 2, among: [lead]}}]\nend: true\n")
    with pytest.raises(ConfigurationError, match=r"policy.yaml: rules\[0\]\.quorum\.of: 2 votes"):
        Reviewer(path)
    path.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Reviewer(path)


@pytest.mark.rule("3.list.open")
async def test_all_that_was_proposed_before_it_came_is_decided_once(
    path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a newcomer is told of by itself, and than its queue takes."""
    monkeypatch.setattr("meup_agent.client.proposal_feed.MAX_OFFERED", 8)
    write(path, ALLOW)
    meeting, reviewer = InMemory(), Reviewer(path)
    count = MAX_LISTED + 40
    async with (
        join(meeting, noting_adder(notes)),
        join(meeting, "proposer") as proposer,
        AsyncExitStack() as stack,
    ):
        made = [
            await stack.enter_async_context(
                proposer.propose("tools", "add", {"a": number, "b": 0}, ttl=None)
            )
            for number in range(count)
        ]
        async with reviewer.join(meeting.connector("reviewer"), token=meeting.token("reviewer")):
            assert [await each.result() for each in made] == list(range(count))
    assert notes.all == ["tools"] * count


async def test_people_are_reminded_until_the_time_is_up(path: Path, notes: Notes) -> None:
    tape = Tape()
    async with reviewed(path, notes, "proposer") as (proposer,):
        session_of(proposer).watchers.listen(tape)
        async with proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer", ttl=None) as p:
            outcome = await ended(p, Rejection)
            assert outcome.reason == "timeout"
            assert "neither a refusal nor a permission" in await outcome.explanation(5)
    reminders = [
        each for each in tape.of(kinds.CHAT, sender="reviewer") if "_meta" in each.payload_object
    ]
    assert len(reminders) == 4
    first = reminders[0].payload_object
    assert f"Proposal {p.id} of 'proposer' waits" in first["message"]
    assert first["_meta"][payloads.RULE]["rule"] == "by hand"
    assert notes.all == []


async def test_what_a_person_decides_ends_the_reminders(path: Path, notes: Notes) -> None:
    tape = Tape()
    results: list[object] = []

    async def propose(space: Space) -> None:
        async with space.propose("tools", "add", {"a": 1, "b": 1}, ttl=None) as proposal:
            results.append(await proposal.result())

    async with reviewed(path, notes, "mallory", "proposer") as (person, proposer):
        session_of(person).watchers.listen(tape)
        async with anyio.create_task_group() as group:
            group.start_soon(propose, proposer)
            reminder = await tape.until(lambda e: e.kind == kinds.CHAT)
            [name] = reminder.correlation
            await person.proposals.get(name).fulfill()
        await anyio.sleep(3_600)
    assert results == [2]
    assert len(tape.of(kinds.CHAT, sender="reviewer")) == 1


async def test_while_the_file_changes_nothing_runs_unasked(path: Path, notes: Notes) -> None:
    async with reviewed(write(path, ALLOW), notes, "second", "proposer") as (second, proposer):
        add = proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer", ttl=None)
        write(path, DENY)
        async with add as proposal:
            await until_held(second)
            await ended(proposal, Rejection)
        write(path, ALLOW)
        async with proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer") as proposal:
            await ended(proposal, Rejection)
        await anyio.sleep(60)
        async with proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer") as proposal:
            assert await proposal.result() == 2
    assert notes.all == ["tools"]


BY_TWO = (
    "rules: [{quorum: {tool: add, of: 2, among: [second, deep], name: four eyes}}]\nend: true\n"
)


@pytest.mark.parametrize(
    ("text", "kind", "rule"),
    [
        (ALLOW, "ask", "by hand"),
        (POLICY.replace("by hand", "anew"), "ask", "anew"),
        (BY_TWO, "quorum", "four eyes"),
    ],
    ids=["allow", "ask", "quorum"],
)
async def test_what_waits_for_people_is_held_against_a_reloaded_policy(
    path: Path, notes: Notes, text: str, kind: str, rule: str
) -> None:
    async with (
        reviewed(path, notes, "second", "proposer") as (second, proposer),
        proposer.propose("tools", "add", {"a": 1, "b": 1}, ttl=None),
    ):
        await until_held(second)
        write(path, text)
        await anyio.sleep(60)
        (waiting,) = (await second.request("reviewer", "dev.meup/waiting"))["proposals"]
        assert (waiting["kind"], waiting["rule"]["name"]) == (kind, rule)
    assert notes.all == []


@pytest.mark.parametrize("before", [POLICY, BY_TWO], ids=["ask", "quorum"])
async def test_what_a_reload_denies_waits_for_nobody(path: Path, notes: Notes, before: str) -> None:
    async with reviewed(write(path, before), notes, "second", "proposer") as (second, proposer):
        add = proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer", ttl=None)
        async with add as proposal:
            await until_held(second)
            write(path, DENY)
            assert (await ended(proposal, Rejection)).reason == "policy"
        assert (await second.request("reviewer", "dev.meup/waiting"))["proposals"] == []
    assert notes.all == []


QUORUM = """
rules:
  - quorum: {tool: add, of: 2, among: [second, deep], ttl: 80m, remind: 30m, name: four eyes}
end: true
"""


@asynccontextmanager
async def reviewed(
    path: Path, notes: Notes | None, *names: str, meeting: InMemory | None = None
) -> AsyncGenerator[tuple[Space, ...]]:
    """The spaces of these, beside a reviewer by a file, and tools unless they are away."""
    meeting, reviewer = meeting or InMemory(), Reviewer(path)
    connector, token = meeting.connector("reviewer"), meeting.token("reviewer")
    async with reviewer.join(connector, token=token), AsyncExitStack() as stack:
        if notes is not None:
            await stack.enter_async_context(join(meeting, noting_adder(notes)))
        yield tuple([await stack.enter_async_context(join(meeting, each)) for each in names])


async def vote(voter: Space, proposal: str, vote: str = "approve") -> dict[str, object]:
    about = {"proposal": proposal, "proposer": "proposer", "vote": vote}
    found: dict[str, object] = await voter.request("reviewer", "dev.meup/vote", about)
    return found


async def until_held(voter: Space) -> None:
    with anyio.fail_after(3_600):
        while not (await voter.request("reviewer", "dev.meup/waiting"))["proposals"]:
            pass


async def test_votes_may_be_an_hour_apart_and_are_reminded(path: Path, notes: Notes) -> None:
    tape = Tape()
    async with reviewed(write(path, QUORUM), notes, "second", "deep", "proposer") as spaces:
        second, deep, proposer = spaces
        session_of(proposer).watchers.listen(tape)
        async with proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer", ttl=None) as p:
            await until_held(second)
            await vote(second, p.id)
            await anyio.sleep(70 * 60)
            assert notes.all == []
            assert (await vote(deep, p.id))["outcome"] == "approved"
            assert await p.result() == 2
    said = [each.payload_object for each in tape.of(kinds.CHAT, sender="reviewer")]
    said = [each for each in said if "_meta" in each]
    assert len(said) == 2
    assert "1 of 2 approvals (second)" in said[0]["message"]
    assert "Not yet voted: deep; vote by `meup inbox vote`" in said[0]["message"]
    assert said[0]["_meta"][payloads.RULE]["votes"] == {"second": "approve"}
    assert notes.all == ["tools"]


async def test_votes_that_do_not_come_approve_nothing(path: Path, notes: Notes) -> None:
    async with reviewed(write(path, QUORUM), notes, "second", "proposer") as (second, proposer):
        async with proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer", ttl=None) as p:
            await until_held(second)
            await vote(second, p.id)
            assert (await ended(p, Rejection)).reason == "timeout"
        with pytest.raises(RequestError, match=r"waits here|no decision counts"):
            await vote(second, p.id)
    assert notes.all == []


@pytest.mark.rule("5.votes.once")
async def test_votes_carry_nothing_out_without_its_target(path: Path, notes: Notes) -> None:
    """The request waits for the target as any does; then its votes are spent."""
    meeting = InMemory()
    async with reviewed(
        write(path, QUORUM), None, "second", "deep", "proposer", meeting=meeting
    ) as spaces:
        second, deep, proposer = spaces
        async with proposer.propose("tools", "add", {"a": 1, "b": 1}, to="reviewer", ttl=None) as p:
            await until_held(second)
            for voter in (second, deep):
                await vote(voter, p.id)
            await anyio.sleep(60)
            assert p.state.is_pending
            async with join(meeting, noting_adder(notes)):
                await anyio.sleep(60)
                assert (await vote(second, p.id))["votes"] == {"second": "approve"}
                assert notes.all == []
                await vote(deep, p.id)
                assert await p.result() == 2
    assert notes.all == ["tools"]

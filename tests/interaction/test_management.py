"""Managing a space: agents grant, revoke, invite and remove, in memory and over real sockets."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, Envelope, Space, Withdrawal
from meup_agent.errors import Kicked, Refused, TokenRefused, UsageError
from meup_agent.types import Grant, Invitation, Revocation
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import Meeting, Notes, gathered, join, open_meeting, until
from tests.interaction.views import of_kind, taped

CALL = {"kind": "mcp/request", "payload": {"method": "tools/call"}}
READ = {"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read"}}}
PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "admin": [{"kind": "*"}],
    "worker": [{"kind": "mcp/proposal"}],
    "tools": [{"kind": "mcp/response"}],
}


@pytest.fixture(params=["memory", "sockets"])
def managed(request: pytest.FixtureRequest) -> Generator[Meeting]:
    """A space with a participant that may manage it."""
    with open_meeting(request.param, PARTICIPANTS) as meeting:
        yield meeting


def worker(notes: Notes) -> Agent:
    agent = Agent("worker")

    @agent.on_grant
    async def granted(grant: Grant, space: Space) -> None:
        # The gateway has told us before what we may do now.
        may = [space.may(each["kind"], each.get("payload", {})) for each in grant.capabilities]
        notes(("granted", grant.by, grant.reason, all(may)))

    @agent.on_revoke
    async def revoked(revocation: Revocation) -> None:
        notes(("revoked", revocation.by, revocation.reason))

    return agent


def slow_tools(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def read(ctx: Context) -> str:
        """Reads for ever."""
        await sleep_until_stopped(notes, ctx, "reading")
        raise AssertionError

    return agent


@pytest.mark.rule("3.manage.grant", "3.manage.ack", "3.manage.revoke.id")
async def test_grant_is_told_and_of_use_at_once(managed: Meeting, notes: Notes) -> None:
    async with gathered(managed, "admin", worker(notes)) as (admin, space):
        assert not space.may("mcp/request", CALL["payload"])
        async with taped(admin) as tape:
            grant = await admin.members.grant("worker", [CALL], reason="trust")
            await notes.until(("granted", "admin", "trust", True))
            ack = await tape.until(of_kind("capability/grant-ack"))
        assert (grant.by, grant.participant) == ("admin", "worker")
        assert (ack.sender, ack.correlation) == ("worker", (grant.id,))
        assert ack.payload == {"status": "accepted"}
        # Everybody sees what the other may do now.
        seen = {each.id: each.capabilities for each in admin.participants}
        assert CALL in seen["worker"]
        await admin.members.revoke("worker", grant=grant, reason="done")
        await notes.until(("revoked", "admin", "done"))
        assert not space.may("mcp/request", CALL["payload"])


async def test_refusals_are_raised(managed: Meeting) -> None:
    async with gathered(managed, "admin", "worker") as (admin, space):
        for refused in (
            space.members.grant("tools", [CALL]),
            space.members.revoke("tools", [CALL]),
            space.members.invite("guest"),
            space.members.kick("tools"),
        ):
            with pytest.raises(Refused) as caught:
                await refused
            assert caught.value.error == "capability_violation"
        with pytest.raises(Refused) as caught:
            await admin.members.grant("nobody", [CALL])
        assert caught.value.error == "unknown_participant"
        with pytest.raises(UsageError):
            await admin.members.revoke("worker")
        with pytest.raises(UsageError):
            await admin.members.revoke("worker", [CALL], grant="g1")


@pytest.mark.rule("3.manage.in_flight", "5.who.gateway")
async def test_request_ends_when_its_grant_is_revoked(managed: Meeting, notes: Notes) -> None:
    async with (
        gathered(managed, "admin", slow_tools(notes), "worker") as (admin, _, space),
        anyio.create_task_group() as tasks,
    ):
        grant = await admin.members.grant("worker", [READ])
        await until(lambda: space.may("mcp/request", READ["payload"]))

        async def call() -> None:
            with pytest.raises(Refused) as refused:
                await space.call("tools", "read", timeout=None)
            notes(("refused", refused.value.error))

        tasks.start_soon(call)
        await notes.until("reading")
        await admin.members.revoke("worker", grant=grant)
        await notes.until(("refused", "revoked"), ("system:gateway", "revoked"))


@pytest.mark.rule("3.manage.in_flight", "5.who.gateway")
async def test_proposal_in_flight_is_withdrawn(managed: Meeting, notes: Notes) -> None:
    reviewer = Agent("tools")

    @reviewer.on_proposal
    async def look(ctx: Context) -> None:
        notes("looking")
        await anyio.sleep_forever()

    @reviewer.on_withdraw
    async def withdrawn(withdrawal: Withdrawal) -> None:
        notes(("withdrawn", withdrawal.cause.code))

    async with (
        gathered(managed, "admin", reviewer, "worker") as (admin, reviewing, space),
        space.propose("tools", "read", ttl=None) as proposal,
    ):
        await notes.until("looking")
        await admin.members.revoke("worker", [{"kind": "mcp/proposal"}])
        with pytest.raises(Refused) as refused:
            await proposal.outcome()
        assert refused.value.error == "revoked"
        await notes.until(("withdrawn", "revoked"))
        assert [str(each.state) for each in reviewing.proposals] == ["withdrawn"]


@asynccontextmanager
async def guest_of(managed: Meeting, invitation: Invitation) -> AsyncGenerator[Space]:
    connector = managed.connector("admin")
    async with Agent("guest").join(
        connector, token=invitation.token, participant=invitation.participant
    ) as space:
        yield space


@pytest.mark.rule("3.manage.invite")
async def test_invited_guest_joins_with_its_token(managed: Meeting) -> None:
    async with gathered(managed, "admin", "worker") as (admin, space), taped(space) as tape:
        invitation = await admin.members.invite("guest", [{"kind": "chat"}], reason="helps")
        assert invitation.token
        assert invitation.token not in repr(invitation)
        await tape.until(lambda e: e.kind == "system/presence" and e.payload["event"] == "invited")
        async with guest_of(managed, invitation) as guest:
            assert guest.me == "guest"
            await guest.chat("hello")
            await tape.until(lambda e: e.sender == "guest" and e.kind == "chat")
        # Nobody else was told the token.
        assert all(invitation.token.encode() not in e.frame for e in tape.envelopes)


@pytest.mark.rule("3.manage.kick")
async def test_who_is_removed_stays_out_until_invited_again(managed: Meeting, notes: Notes) -> None:
    async def be_kicked() -> None:
        try:
            async with join(managed, "worker"):
                notes("in")
                await anyio.sleep_forever()
        except Kicked as kicked:
            notes(("out", "loud" in str(kicked)))

    async with gathered(managed, "admin") as (admin,), anyio.create_task_group() as tasks:
        tasks.start_soon(be_kicked)
        await notes.until("in")
        await admin.members.kick("worker", reason="loud")
        await notes.until(("out", True))
        await until(lambda: "worker" not in {each.id for each in admin.participants})
        with pytest.raises(
            TokenRefused,
            match=r"removed from this space; ask a participant there to invite you again$",
        ):
            await join(managed, "worker").__aenter__()
        invitation = await admin.members.invite("worker")
        assert invitation.token is None
        async with join(managed, "worker") as again:
            assert again.may("mcp/proposal", {})


async def test_handlers_are_told_of_nobody_elses_grants(managed: Meeting, notes: Notes) -> None:
    agent = worker(notes)

    @agent.on("capability/*")
    async def every(envelope: Envelope) -> None:
        notes(envelope.kind)

    async with gathered(managed, "admin", agent, "tools") as (admin, _, _):
        grant = await admin.members.grant("tools", [CALL])
        await admin.members.revoke("tools", grant=grant)
        await notes.until("capability/grant", "capability/revoke")
    assert all(isinstance(each, str) for each in notes.all)

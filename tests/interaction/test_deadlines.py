"""The time of proposals, on a clock that jumps: deadlines, renewals, expiry for everybody."""

from datetime import timedelta

import anyio
import pytest

from meup_agent import Agent, Envelope, Expiry, Proposal, ProposalState, Settings, Space
from meup_agent.errors import (
    AlreadyDecided,
    ConfigurationError,
    ProposalExpired,
    Refused,
    UsageError,
)
from tests.interaction.cast import noting_adder
from tests.interaction.people import InMemory, Notes, join, raw, until
from tests.interaction.views import is_error
from tests.virtual_time import anyio_backend as anyio_backend
from tests.wire import kinds, payloads

HOUR = 3600.0


@pytest.fixture
def meeting(anyio_backend: object) -> InMemory:
    return InMemory()


def holding(notes: Notes) -> Agent:
    """A reviewer that holds what it sees."""
    agent = Agent("reviewer")

    @agent.on_proposal
    async def hold(proposal: Proposal) -> None:
        notes(proposal.id)

    @agent.on_expire
    async def expired(expiry: Expiry, proposal: Envelope) -> None:
        notes(("expired", expiry.proposal_id, proposal.sender))

    return agent


CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}


def held(seconds: float, space: Space) -> dict[str, object]:
    expires = (space.gateway.now + timedelta(seconds=seconds)).isoformat()
    meta = {payloads.EXPIRES_AT: expires, payloads.TARGET: "tools"}
    return payloads.proposal("tools/call", {**CALL, "_meta": meta})


@pytest.mark.rule("4.2.expiry", "4.2.expiry.told")
async def test_a_proposer_that_dies_leaves_nothing_pending(meeting: InMemory, notes: Notes) -> None:
    async with (
        join(meeting, noting_adder(notes)),
        join(meeting, holding(notes)) as reviewer,
        join(meeting, "second") as onlooker,
    ):
        async with raw(meeting, "proposer") as alice:
            await alice.say(kinds.MCP_PROPOSAL, held(60, reviewer), id="p1")
            await until(lambda: "p1" in notes.all)
        await anyio.sleep(100)
        assert {each.proposals[0].state for each in (reviewer, onlooker)} == {ProposalState.PENDING}
        await anyio.sleep(30)
        assert {each.proposals[0].state for each in (reviewer, onlooker)} == {ProposalState.EXPIRED}
        await until(lambda: ("expired", "p1", "proposer") in notes.all)
        with pytest.raises(AlreadyDecided, match="expired"):
            await reviewer.proposals.get("p1").fulfill(even_if_gone=True)
        # Whoever does not look is refused by the gateway.
        async with raw(meeting, "mallory") as blind:
            body = payloads.request("tools/call", CALL, "r1")
            await blind.say(kinds.MCP_REQUEST, body, id="r1", to=("tools",), correlation=("p1",))
            refusal = await blind.hear(is_error)
            assert refusal.payload_object["state"] == "expired"
    assert "tools" not in notes.all


@pytest.mark.rule("4.4.before_it_is_sent", "4.17.renew")
async def test_what_was_held_overnight_is_carried_out(meeting: InMemory, notes: Notes) -> None:
    async with (
        join(meeting, noting_adder(notes)),
        join(meeting, holding(notes)) as reviewer,
        join(meeting, "proposer") as proposer,
        proposer.propose("tools", "add", {"a": 1, "b": 2}, ttl=12 * HOUR) as proposal,
    ):
        await until(lambda: proposal.id in notes.all)
        first = reviewer.proposals.get(proposal.id)
        await anyio.sleep(11 * HOUR)
        await proposal.renew(24 * HOUR)
        await until(lambda: first.expires_at == proposal.expires_at)
        await anyio.sleep(20 * HOUR)
        done = await first.fulfill()
        assert not done.edited
        assert await proposal.result() == 3


@pytest.mark.rule("4.17.renew")
async def test_a_renewed_proposal_expires_later(meeting: InMemory, notes: Notes) -> None:
    async with (
        join(meeting, holding(notes)) as reviewer,
        join(meeting, "proposer") as proposer,
        proposer.propose("reviewer", "add", ttl=100) as proposal,
    ):
        await anyio.sleep(90)
        await proposal.renew(100)
        begun = anyio.current_time()
        with pytest.raises(ProposalExpired):
            await proposal.result()
        assert anyio.current_time() - begun == pytest.approx(100, abs=0.01)
        with pytest.raises(AlreadyDecided, match="expired"):
            await proposal.renew(100)
        await until(lambda: reviewer.proposals[0].state is ProposalState.EXPIRED)


@pytest.mark.rule("4.17.bounds")
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"until": 100, "by": "second"}, "not_proposer"),
        ({"until": 20}, "not_renewed"),
        ({"until": 30 * 24 * HOUR}, "not_renewed"),
        ({"until": 100, "names": ("p2",)}, "not_renewed"),
        ({"until": 100, "names": ("p1", "p2")}, "invalid_envelope"),
        ({"until": 100, "after": 95}, "not_renewed"),
        ({"until": None}, "invalid_envelope"),
    ],
    ids=["another's", "earlier", "too far", "unknown", "several", "too late", "no time"],
)
async def test_the_gateway_refuses_what_is_no_renewal(
    meeting: InMemory, said: dict[str, object], code: str
) -> None:
    async with (
        join(meeting, "reviewer") as space,
        raw(meeting, "proposer") as alice,
        raw(meeting, "second") as bob,
    ):
        begun = space.gateway.now
        await alice.say(kinds.MCP_PROPOSAL, held(30, space), id="p1")
        await until(lambda: bool(space.proposals))
        await anyio.sleep(float(str(said.get("after", 0))))
        seconds = said["until"]
        until_when = None
        if seconds is not None:
            until_when = (begun + timedelta(seconds=float(str(seconds)))).isoformat()
        names = said.get("names", ("p1",))
        assert isinstance(names, tuple)
        speaker = bob if said.get("by") else alice
        await speaker.say(kinds.MCP_RENEW, {"expires_at": until_when}, id="n1", correlation=names)
        refusal = await speaker.hear(is_error)
        assert refusal.payload_object["error"] == code
        assert space.proposals[0].expires_at == begun + timedelta(seconds=30)


@pytest.mark.rule("4.17.renew", "4.6.newcomers")
async def test_a_newcomer_learns_the_renewed_deadline(meeting: InMemory, notes: Notes) -> None:
    async with (
        join(meeting, noting_adder(notes)),
        join(meeting, "proposer") as proposer,
        proposer.propose("tools", "add", {"a": 1, "b": 2}, ttl=100) as proposal,
    ):
        await proposal.renew(HOUR)
        await anyio.sleep(HOUR / 2)
        async with join(meeting, holding(notes)) as reviewer:
            await until(lambda: bool(reviewer.proposals))
            assert reviewer.proposals[0].expires_at == proposal.expires_at
            assert reviewer.proposals[0].state is ProposalState.PENDING


@pytest.mark.rule("6.ttl")
async def test_a_foreign_ttl_ends_a_proposal_for_all(meeting: InMemory, notes: Notes) -> None:
    async with join(meeting, holding(notes)) as reviewer, raw(meeting, "proposer") as alice:
        body = {"method": "tools/call", "ttl": 30_000, "params": CALL}
        await alice.say(kinds.MCP_PROPOSAL, body, id="p1")
        await until(lambda: bool(reviewer.proposals))
        async with join(meeting, "second") as late:
            await until(lambda: bool(late.proposals))
            await anyio.sleep(85)
            assert reviewer.proposals[0].state is ProposalState.PENDING
            await anyio.sleep(15)
            states = {each.proposals[0].state for each in (reviewer, late)}
        assert states == {ProposalState.EXPIRED}


@pytest.mark.parametrize("blocked", [False, True])
async def test_a_time_that_no_calendar_has_is_refused(meeting: InMemory, blocked: bool) -> None:
    async with join(meeting, "proposer") as space, space.propose("tools", "add") as first:
        later = space.propose("tools", "add", ttl=1e12, depends_on=[first] if blocked else ())
        with pytest.raises(UsageError, match="at most 31622400 s; give None"):
            async with later:
                pass
    with pytest.raises(UsageError, match="at most"):
        Settings(ttl=1e12)


@pytest.mark.rule("6.expires_at")
async def test_the_settings_of_a_space_say_how_long_a_proposal_waits(
    meeting: InMemory, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waited(settings: Settings | None, **more: float | None) -> float:
        begun = anyio.current_time()
        async with join(meeting, "proposer", settings=settings) as proposer:
            with pytest.raises(ProposalExpired):
                async with proposer.propose("reviewer", "add", **more) as proposal:  # type: ignore[arg-type]
                    await proposal.result()
        return anyio.current_time() - begun

    async with join(meeting, holding(notes)):
        assert await waited(None) == pytest.approx(300, abs=1)
        assert await waited(Settings(ttl=50)) == pytest.approx(50, abs=1)
        assert await waited(Settings(ttl=50), ttl=20) == pytest.approx(20, abs=1)
        monkeypatch.setenv("MEUP_TTL", "600")
        assert await waited(None) == pytest.approx(600, abs=1)
        monkeypatch.setenv("MEUP_TTL", "none")
        assert Settings().ttl is None
        for wrong in ("soon", "-1", "nan"):
            monkeypatch.setenv("MEUP_TTL", wrong)
            with pytest.raises(ConfigurationError, match="MEUP_TTL"):
                Settings()


@pytest.mark.rule("4.17.bounds")
async def test_a_refused_renewal_is_an_error(meeting: InMemory, notes: Notes) -> None:
    async with (
        join(meeting, holding(notes)),
        join(meeting, "proposer") as proposer,
        proposer.propose("reviewer", "add", ttl=HOUR) as proposal,
    ):
        await until(lambda: proposal.id in notes.all)
        meeting.restart()  # it has forgotten everything
        await until(lambda: proposer.connected)
        await anyio.sleep(10)
        before = proposal.expires_at
        with pytest.raises(Refused, match="not known here"):
            await proposal.renew(2 * HOUR)
        assert proposal.expires_at == before

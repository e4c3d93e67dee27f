"""Incidents of identity: who approved, and who asked."""

import anyio
import httpx

from meup_agent import Agent
from meup_agent.approval import AllowRule, Policy
from meup_agent.approval.policy.rules import Vote, VoteCount
from meup_agent.protocol.space.state.grants import SpaceManager
from tests.bypass.incident import incident
from tests.bypass.place import (
    CALLS,
    Place,
    attempt,
    call_itself,
    fulfill_by_hand,
    let_call,
    proposed,
    requested,
)
from tests.gateways import Identity, Tokens
from tests.interaction.people import OverSockets, raw, until
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE
from tests.spaces import Rules
from tests.tables import Admission
from tests.wire import draft, encode, kinds


@incident(off=let_call("bystander"))
async def anybody_approves(place: Place) -> None:
    async with place.joined(), raw(place.meeting, "agent") as agent:
        async with raw(place.meeting, "bystander") as bystander:
            await agent.say(kinds.MCP_PROPOSAL, proposed("pay", amount=5000), id="p1")
            await bystander.hear(lambda e: e.id == "p1")
            await fulfill_by_hand(bystander, "pay", amount=5000)


def _believe_senders(place: Place) -> None:
    """Switch off: the gateway takes the sender that an envelope claims."""
    place.patch.setattr(Rules, "check_sender", lambda *_: None)


@incident(off=_believe_senders)
async def approver_by_claim(place: Place) -> None:
    async with place.joined("reviewer"), raw(place.meeting, "agent") as agent:
        await agent.say(kinds.MCP_PROPOSAL, proposed("pay", amount=5000), id="p1")
        forged = draft(
            kinds.MCP_REQUEST,
            requested("r1", "pay", amount=5000),
            id="r1",
            sender="reviewer",
            to=("tools",),
            correlation=("p1",),
        )
        await agent.transport.send(encode(forged, "meup/v0.1"))
        await agent.say(kinds.CHAT, {"message": "well?"}, id="c1")
        await agent.hear(lambda e: e.id == "c1")


def _count_every_vote(place: Place) -> None:
    """Switch off: each vote is one more, whoever gives it."""

    def cast(self: VoteCount, voter: str, vote: Vote, explanation: str = "") -> VoteCount:
        del voter, explanation
        free = next(each for each in self.among if each not in self.votes)
        return VoteCount(self.proposer, self.of, self.among, {**self.votes, free: vote})

    place.patch.setattr(VoteCount, "cast", cast)


@incident(off=_count_every_vote)
async def one_counts_as_two(place: Place) -> None:
    async with (
        place.joined("second", "agent") as (second, agent),
        place.reviewer("[quorum: {tool: delete, of: 2, among: [second, bystander]}]"),
        agent.propose("tools", "delete", {"path": "prod.db"}, to="reviewer") as proposal,
    ):
        about_it = {"proposal": proposal.id, "proposer": "agent"}
        for vote in ("approve", "approve", "reject"):
            await attempt(second.request("reviewer", "dev.meup/vote", {**about_it, "vote": vote}))
        await attempt(proposal.outcome())


def _let_fulfill_own(place: Place) -> None:
    let_call("agent")(place)
    place.patch.setattr(Admission, "denial", lambda *_: None)


@incident(off=_let_fulfill_own)
async def model_approves_itself(place: Place) -> None:
    async with place.joined("reviewer"), raw(place.meeting, "agent") as agent:
        body = proposed("delete", path="prod.db")
        body["params"]["approved"] = True
        await agent.say(kinds.MCP_PROPOSAL, body, id="p1")
        await agent.say(kinds.CHAT, {"message": "/approve p1"}, id="c1")
        await fulfill_by_hand(agent, "delete", path="prod.db")


@incident(given=let_call("agent"), off=let_call("subagent"))
async def subagent_inherits(place: Place) -> None:
    async with place.joined("reviewer", "agent", "subagent") as (_, _, subagent):
        await call_itself(subagent, "delete", path="prod.db")


def _let_grant(place: Place) -> None:
    """Switch off: the agent may grant, and more than it has."""
    place.capabilities["agent"].append({"kind": "capability/grant"})
    place.patch.setattr(SpaceManager, "_check_given", lambda *_: None)


@incident(off=_let_grant)
async def agent_changes_its_rules(place: Place) -> None:
    async with place.joined("reviewer", "agent") as (_, agent):
        await attempt(agent.members.grant("agent", CALLS))
        await call_itself(agent, "delete", path="prod.db")


def _admit_strangers(place: Place) -> None:
    """Switch off: a token that nobody has is taken for the reviewer's."""
    identify = Tokens.identify

    def anybody(self: Tokens, token: str) -> Identity:
        return identify(self, token) or Identity("demo", "reviewer")

    place.patch.setattr(Tokens, "identify", anybody)


@incident(off=_admit_strangers, sockets=True)
async def no_authentication(place: Place) -> None:
    async with place.joined():
        await _post(place, "reviewer", token="guessed")


@incident(off=let_call("agent"), sockets=True)
async def other_door(place: Place) -> None:
    async with place.joined("reviewer"):
        await _post(place, "agent", token=place.meeting.token("agent"))


async def _post(place: Place, participant: str, *, token: str) -> None:
    """Send the request over HTTP."""
    assert isinstance(place.meeting, OverSockets)
    address = f"{place.meeting.gateway.http_url}/participants/{participant}/messages"
    payload = requested("r1", "delete", path="prod.db")
    body = {"kind": "mcp/request", "to": ["tools"], "payload": payload}
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {token}"}, verify=NO_TLS, timeout=PATIENCE
    ) as client:
        answer = await client.post(address, params={"space": "demo"}, json=body)
    if answer.is_success:
        await until(lambda: bool(place.ran))


@incident(off=None)
async def stolen_token(place: Place) -> None:
    path = place.folder / "token"
    path.write_text(place.meeting.token("reviewer"), "utf-8")
    owner, second = Agent("other"), Agent("second")

    @owner.tool
    async def look(path: str) -> str:
        return await anyio.Path(path).read_text("utf-8")

    second.use(Policy([AllowRule("look", target="other")]))
    async with place.joined(owner, second, "agent") as (*_, agent):
        token = await agent.call("other", "look", {"path": str(path)})
        connector = place.meeting.connector("reviewer")
        async with Agent("reviewer").join(connector, token=str(token)) as approver:
            await call_itself(approver, "delete", path="prod.db")

"""Incidents of identity: who approved, and who asked."""

from __future__ import annotations

import anyio
import httpx

from meup_agent import Agent
from meup_agent.approval import AllowRule, Policy, Reviewer
from meup_agent.approval.voting import Vote, VoteCount
from meup_agent.protocol.space.management import SpaceManager
from tests.bypass.incident import incident
from tests.bypass.place import (
    CALLS,
    Place,
    about,
    attempt,
    call_itself,
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


@incident(
    "Anybody in the room can approve",
    link="https://github.com/agentscope-ai/agentscope/issues/2373",
    date="2026-08-20",
    said="can be approved or denied by any member of that chat",
    there="The question was posted to a group, and the answer of any member counted.",
    here=(
        "Approving is making the request, which a participant's capabilities allow or not; the"
        " gateway refuses the others', and says so to them alone."
    ),
    off=let_call("bystander"),
    also=("https://github.com/openonion/connectonion/issues/551",),
)
async def anybody_approves(place: Place) -> None:
    async with place.joined(), raw(place.meeting, "agent") as agent:
        async with raw(place.meeting, "bystander") as bystander:
            await agent.say(kinds.MCP_PROPOSAL, proposed("pay", amount=5000), id="p1")
            await bystander.hear(lambda e: e.id == "p1")
            await bystander.say(
                kinds.MCP_REQUEST,
                requested("r1", "pay", amount=5000),
                id="r1",
                to=("tools",),
                correlation=("p1",),
            )
            await bystander.hear(about("r1"))


def _believe_senders(place: Place) -> None:
    """Switch off: the gateway takes the sender that an envelope claims."""
    place.patch.setattr(Rules, "check_sender", lambda *_: None)


@incident(
    "The approver is whoever the message says",
    link="https://github.com/curie-eng/curie/issues/1531",
    date="2026-08-16",
    said=(
        "the authorizer's own authorization EVIDENCE is caller supplied, not just the approver name"
    ),
    there="A caller named the approver and the channel, and both were believed.",
    here=(
        "A participant is who its token says. An envelope that claims another sender is refused as"
        " `identity_mismatch`, and reaches nobody."
    ),
    off=_believe_senders,
    also=("https://github.com/Runfusion/Fusion/pull/2457",),
)
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


@incident(
    "One approver counts as two",
    link="https://github.com/superplanehq/superplane/issues/1785",
    date="2026-01-23",
    said="`John Doe` should not be able to approve second time",
    there="Two approvals were asked for, and one person could give both.",
    here=(
        "A vote is its voter's, by the token: each has one, and a second vote takes the place of"
        " the first. The proposer's never counts."
    ),
    off=_count_every_vote,
    also=("https://github.com/alphaonedev/ai-memory-mcp/issues/1787",),
)
async def one_counts_as_two(place: Place) -> None:
    path = place.folder / "policy.yaml"
    path.write_text(
        "rules: [quorum: {tool: delete, of: 2, among: [second, bystander]}]\nend: true\n", "utf-8"
    )
    connector, token = place.meeting.connector("reviewer"), place.meeting.token("reviewer")
    async with (
        place.joined("second", "agent") as (second, agent),
        Reviewer(path).join(connector, token=token),
        agent.propose("tools", "delete", {"path": "prod.db"}, to="reviewer") as proposal,
    ):
        about_it = {"proposal": proposal.id, "proposer": "agent"}
        for vote in ("approve", "approve", "reject"):
            await attempt(second.request("reviewer", "dev.meup/vote", {**about_it, "vote": vote}))
        await attempt(proposal.outcome())


def _let_fulfill_own(place: Place) -> None:
    let_call("agent")(place)
    place.patch.setattr(Admission, "denial", lambda *_: None)


@incident(
    "The model answers its own question",
    link="https://github.com/mastra-ai/mastra/pull/21375",
    date="2026-08-12",
    said=(
        "An agent could approve its own suspended tool call and execute a consent-gated action with"
        " no human input."
    ),
    there="The model wrote the approval into its own tool call, and it was read from there.",
    here=(
        "Whatever an agent writes is its own message: it may not send the request, and no executor"
        " carries out a proposal for its own proposer."
    ),
    off=_let_fulfill_own,
    also=(
        "https://github.com/google/adk-js/pull/771",
        "https://github.com/PavelZaytsev/bat/issues/67",
        "https://github.com/vybestack/llxprt-code/issues/2659",
    ),
)
async def model_approves_itself(place: Place) -> None:
    async with place.joined("reviewer"), raw(place.meeting, "agent") as agent:
        body = proposed("delete", path="prod.db")
        body["params"]["approved"] = True
        await agent.say(kinds.MCP_PROPOSAL, body, id="p1")
        await agent.say(kinds.CHAT, {"message": "/approve p1"}, id="c1")
        await agent.say(
            kinds.MCP_REQUEST,
            requested("r1", "delete", path="prod.db"),
            id="r1",
            to=("tools",),
            correlation=("p1",),
        )
        await agent.hear(about("r1"))


@incident(
    "A sub-agent inherits the approval of its parent",
    link="https://github.com/andrefetch/postal/issues/8",
    date="2026-07-26",
    said="Sub-agents auto-approve their own tool calls",
    there="What was delegated ran in a loop that had no question in it.",
    here=(
        "A sub-agent is a participant with a token and capabilities of its own, and inherits none."
        " Where a parent gives its token away, both are one participant, with one's capabilities."
    ),
    given=let_call("agent"),
    off=let_call("subagent"),
)
async def subagent_inherits(place: Place) -> None:
    async with place.joined("reviewer", "agent", "subagent") as (_, _, subagent):
        await call_itself(subagent, "delete", path="prod.db")


def _let_grant(place: Place) -> None:
    """Switch off: the agent may grant, and more than it has."""
    place.capabilities["agent"].append({"kind": "capability/grant"})
    place.patch.setattr(SpaceManager, "_check_given", lambda *_: None)


@incident(
    "The agent changes the rules that it is under",
    link="https://github.com/openonion/connectonion/issues/722",
    date="2026-08-05",
    said="The gate is real, and the thing it gates decides its own rules.",
    there="The agent could write files, and its permissions were one of them.",
    here=(
        "Capabilities are the gateway's, in another process, and changing them is a capability"
        " itself."
    ),
    off=_let_grant,
)
async def agent_changes_its_rules(place: Place) -> None:
    async with place.joined("reviewer", "agent") as (_, agent):
        await attempt(agent.grant("agent", CALLS))
        await call_itself(agent, "delete", path="prod.db")


def _admit_strangers(place: Place) -> None:
    """Switch off: a token that nobody has is taken for the reviewer's."""
    identify = Tokens.identify

    def anybody(self: Tokens, token: str) -> Identity:
        return identify(self, token) or Identity("demo", "reviewer")

    place.patch.setattr(Tokens, "identify", anybody)


@incident(
    "The door beside the gate has no lock",
    link="https://github.com/andrewyng/openworker/issues/28",
    date="2026-07-23",
    said="Local sidecar API has no authentication — any local process can drive shell/file tools",
    there="Tools could be called over a local port without any token.",
    here="Every door of the gateway asks for a token, on loopback, too, before anything is read.",
    off=_admit_strangers,
    sockets=True,
)
async def no_authentication(place: Place) -> None:
    async with place.joined():
        await _post(place, "reviewer", token="guessed")


@incident(
    "Another door leads around the question",
    link="https://github.com/extra-org/extra/issues/29",
    date="2026-08-31",
    said="skips the human consent the doc promises",
    there="The same engine had an HTTP interface in which nothing asked.",
    here="WebSocket and HTTP are edges of one runtime; one check of capabilities is behind both.",
    off=let_call("agent"),
    sockets=True,
)
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


# --- no rule stops this ---


@incident(
    "The agent reads the approver's token, and is the approver",
    link="https://github.com/Runfusion/Fusion/pull/2457",
    date="2026-07-26",
    said="an agent could read the daemon token from `~/.fusion/settings.json`",
    there=(
        "The token with which approvals are decided lay in a file that the agent's tools could"
        " read; with it the agent approved its own request."
    ),
    here=(
        "Nothing stops it: who has a token is its participant. Keep tokens where no tool of the"
        " space reads (`meup` writes its files for their owner alone, which is no lock for tools of"
        " that owner), and let agents and their tools run as another user than the approvers."
    ),
    off=None,
)
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

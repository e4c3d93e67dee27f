"""A space in which an agent that is not trusted tries to get a call carried out."""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from meup_agent import Agent, Envelope, Proposal, Space
from meup_agent.approval import Policy, PolicyRule, Reviewer
from meup_agent.errors import MeupError
from meup_agent.gateway import Gateway, HttpConfig
from tests.gateways import one_space_config
from tests.interaction.people import (
    LIMITS,
    Capabilities,
    InMemory,
    Meeting,
    Notes,
    OverSockets,
    Raw,
    join,
)
from tests.wire import kinds, payloads

PROPOSES: Final[Capabilities] = [
    {"kind": "mcp/proposal"},
    {"kind": "mcp/withdraw"},
    {"kind": "mcp/request", "payload": {"method": "tools/list"}},
    {"kind": "chat"},
]
CALLS: Final[Capabilities] = [{"kind": "mcp/request", "payload": {"method": "tools/call"}}]
ASKS: Final[Capabilities] = [{"kind": "mcp/request", "payload": {"method": "dev.meup/*"}}]
DECIDES: Final[Capabilities] = [*CALLS, *ASKS, {"kind": "mcp/reject"}, *PROPOSES]


class Place:
    """A space, and what its tools did in it.

    The participants: ``agent`` may only propose; ``reviewer`` and ``second`` decide; ``bystander``
    chats; ``tools`` has the tools; ``other`` has tools of its own.

    Attributes:
        capabilities: Capabilities by participant, until the space opens.
        ran: Calls that ran, in words.
        approved: Calls that a person or a rule approved, in the same words.
        patch: Undone when the test ends.
        patience: Seconds that an attack waits for a call that nothing may carry out.
    """

    def __init__(self, kind: str, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.kind = kind
        self.patch = patch
        self.folder = folder
        self.notes = Notes()
        self.patience = 0.3
        self.ran: list[str] = []
        self.approved: list[str] = []
        self.capabilities: dict[str, Capabilities] = {
            "agent": list(PROPOSES),
            "subagent": list(PROPOSES),
            "reviewer": [{"kind": "*"}],
            "second": list(DECIDES),
            "bystander": [{"kind": "chat"}],
            "tools": [{"kind": "mcp/response"}, {"kind": "chat"}],
            "other": [{"kind": "mcp/response"}, {"kind": "chat"}],
        }
        self.meeting: Meeting

    @property
    def unapproved(self) -> list[str]:
        """Calls that ran without an approval, or more often than they were approved."""
        return list((Counter(self.ran) - Counter(self.approved)).elements())

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open the space, with the capabilities of this moment."""
        if self.kind == "memory":
            self.meeting = InMemory(self.capabilities)
            yield
        else:
            config = one_space_config("demo", self.capabilities, LIMITS)
            with Gateway(config=replace(config, http=HttpConfig())).in_thread() as gateway:
                self.meeting = OverSockets(gateway)
                yield

    @asynccontextmanager
    async def joined(self, *agents: Agent | str) -> AsyncGenerator[tuple[Space, ...]]:
        """Let ``tools`` and these join, in their order, for the length of a block."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(join(self.meeting, self.tools()))
            yield tuple(
                [await stack.enter_async_context(join(self.meeting, each)) for each in agents]
            )

    def tools(self, name: str = "tools") -> Agent:
        """The owner of tools that note what they did."""
        owner = Agent(name)
        whose = "" if name == "tools" else f"{name}: "

        def note(what: str) -> str:
            self.ran.append(f"{whose}{what}")
            return "done"

        @owner.tool
        async def read(path: str) -> str:
            return note(f"read {path}")

        @owner.tool
        async def delete(path: str) -> str:
            return note(f"delete {path}")

        @owner.tool
        async def pay(amount: int) -> str:
            return note(f"pay {amount}")

        @owner.tool
        async def shell(command: str) -> str:
            return note(f"shell {command}")

        return owner

    def reviewer(self, rules: str) -> AbstractAsyncContextManager[Space]:
        """A reviewer that decides by a policy's file, `policy.yaml`."""
        path = self.folder / "policy.yaml"
        path.write_text(f"rules: {rules}\nend: true\n", "utf-8")
        token = self.meeting.token("reviewer")
        return Reviewer(path).join(self.meeting.connector("reviewer"), token=token)

    async def call_under(
        self,
        rules: Sequence[PolicyRule],
        call: tuple[str, str, dict[str, Any]],
        *owners: Agent,
        patience: float = math.inf,
    ) -> None:
        """Let the agent call a tool, where a reviewer decides by these rules."""
        reviewer = Agent("reviewer")
        reviewer.use(Policy(rules))
        async with self.joined(*owners, reviewer, "agent") as (*_, agent):
            with anyio.move_on_after(patience):
                await attempt(agent.call(*call))

    def holding(self, name: str = "reviewer") -> tuple[Agent, list[Proposal]]:
        """An agent that decides nothing, and the proposals that it holds."""
        held: list[Proposal] = []
        agent = Agent(name)

        @agent.on_proposal
        async def keep(proposal: Proposal) -> None:
            held.append(proposal)

        return agent, held

    async def approve(self, proposal: Any) -> None:
        """Approve one proposal, and note what was approved."""
        (value,) = proposal.arguments.values()
        self.approved.append(f"{proposal.tool} {value}")
        await proposal.fulfill()


def let_call(*names: str) -> Callable[[Place], None]:
    """Switch off: these participants may call tools themselves, as if approval were their own."""

    def off(place: Place) -> None:
        for name in names or ("agent",):
            place.capabilities[name] = [*place.capabilities[name], *CALLS]

    return off


async def attempt(verb: Awaitable[Any]) -> object:
    """The result of a step of an attack, or the error that it meets."""
    try:
        return await verb
    except MeupError as error:
        return error


async def fulfill_by_hand(
    member: Raw, tool: str, /, id: str = "r1", of: str = "p1", **arguments: Any
) -> None:
    """Let a member send the request that fulfills a proposal, and hear what becomes of it."""
    payload = requested(id, tool, **arguments)
    await member.say(kinds.MCP_REQUEST, payload, id=id, to=("tools",), correlation=(of,))
    await member.hear(about(id))


async def call_itself(agent: Space, tool: str, /, **arguments: Any) -> object:
    """Let an agent make the request itself, without a proposal."""
    params = {"name": tool, "arguments": arguments}
    return await attempt(agent.request("tools", "tools/call", params))


def proposed(tool: str, /, **arguments: Any) -> dict[str, Any]:
    """The payload of a proposal that `tools` should carry out."""
    meta = {payloads.TARGET: "tools"}
    return payloads.proposal(
        "tools/call", {"name": tool, "arguments": arguments, payloads.META: meta}
    )


def requested(id: str, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """The payload of a request of a tool's call."""
    return payloads.request("tools/call", {"name": tool, "arguments": arguments}, id)


def about(id: str) -> Callable[[Envelope], bool]:
    """An answer to an envelope, or its refusal."""
    return lambda envelope: id in envelope.correlation

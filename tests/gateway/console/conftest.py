"""A gateway with a console, agents in its spaces, and browsers without a script."""

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx
import pytest

from meup_agent import Agent, ProposalHandle, Space
from meup_agent.approval import Reviewer
from meup_agent.gateway import Config, Gateway, GatewayLimits, ThreadedGateway
from meup_agent.gateway.console import Console
from meup_agent.gateway.console.pages import PAGES
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.gateways import one_space_config
from tests.no_tls import ALONE
from tests.patience import PATIENCE, patient

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "you": [{"kind": "mcp/request"}, {"kind": "mcp/reject"}, {"kind": "chat"}],
    "other": [{"kind": "mcp/request"}, {"kind": "mcp/reject"}],
    "looker": [{"kind": "chat"}],
    "boss": [{"kind": "*"}],
    "voter": [
        {"kind": "mcp/request", "payload": {"method": ["dev.meup/waiting", "dev.meup/vote"]}},
        {"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "look"}}},
        {"kind": "mcp/request", "payload": {"method": "tools/list"}},
        {"kind": "mcp/reject"},
    ],
    "reviewer": [{"kind": "*"}],
    "proposer": [
        {"kind": "mcp/proposal"},
        {"kind": "chat"},
        {"kind": "mcp/request", "payload": {"method": "tools/list"}},
    ],
    "tools": [{"kind": "mcp/response"}, {"kind": "chat"}],
}

WAITS = (
    "meup_agent.gateway.console.presence.JOIN_SECONDS",
    "meup_agent.approval.inbox.item.FIRST_SECONDS",
    "meup_agent.gateway.console.pages.inbox.OUTCOME_SECONDS",
    "meup_agent.gateway.console.presence.JOIN_SECONDS",
)
"""After these a page says less."""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Browser:
    """A browser without a script: it follows links, sends forms, and keeps cookies."""

    client: httpx.AsyncClient
    origin: str

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(f"/console{path}", **options)

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        return await self.client.post(
            f"/console{path}", data=fields, headers={"Origin": self.origin, **headers}
        )

    async def fields(self, path: str, action: str) -> dict[str, str]:
        """The fields of the form of a page that goes to an address."""
        page = await self.get(path)
        return fields_in(page.text, action)

    async def submit(self, path: str, action: str, **fields: str) -> httpx.Response:
        """Fill in the form of a page, and send it."""
        return await self.post(action, {**await self.fields(path, action), **fields})

    async def page(self, path: str = "/inbox", *words: str, gone: str = "") -> str:
        """A page, once it has some words, and another one no more."""
        while True:
            page = (await self.get(path)).text
            if all(each in page for each in words) and not (gone and gone in page):
                return page
            await anyio.lowlevel.checkpoint()

    async def key(self, *words: str) -> str:
        """The key of the first decision, once the inbox has one, and some words."""
        return key_in(await self.page("/inbox", 'data-key="', *words))

    async def decide(self, key: str, verb: str = "approve", **fields: str) -> httpx.Response:
        """Take a decision by its form, with the word that a dangerous one asks for."""
        fields = {"sure": "yes"} | fields if verb == "approve" else fields
        return await self.submit("/inbox", f"/inbox/{key}/{verb}", **fields)

    async def sign_in(self, token: str) -> httpx.Response:
        return await self.submit("/sign-in", "/sign-in", token=token)


PLAIN_PAGES = tuple(
    page.path
    for page in PAGES
    if page.method == "GET"
    and not page.is_open
    and "{" not in page.path
    # An endless stream, and three that answer a question.
    and page.path not in ("/events", "/participants/try", "/tools", "/history/unseen")
)
"""The pages that need nothing but their address, the inbox first."""


def key_in(page: str) -> str:
    found = re.search(r'data-key="([0-9a-f]{24})"', page)
    assert found is not None, "nothing waits"
    return found[1]


def fields_in(page: str, action: str, having: str = "csrf") -> dict[str, str]:
    """The fields of the form in a page that goes to an address, and has a certain field."""
    forms = re.findall(r'(?s)<form\b[^>]*?\baction="([^"]*)"(.*?)(?=<form\b|\Z)', page)
    found = [_values(form) for goes_to, form in forms if goes_to == f"/console{action}"]
    found = [each for each in found if having in each or having == "csrf"]
    assert found, f"no form goes to {action}: {[goes_to for goes_to, _ in forms]}"
    return found[0]


def _values(form: str) -> dict[str, str]:
    """The values of a form's fields that a browser would send."""
    fields: dict[str, str] = {}
    # The line end after the tag of a text is not part of it.
    field = r"(?s)<(?:input\b([^>]*)|textarea\b([^>]*)>\n?(.*?)</textarea)>"
    for input, area, text in re.findall(field, form):
        said = dict(re.findall(r'([\w-]+)="([^"]*)"', input or area))
        if "name" in said:
            fields[said["name"]] = unescape(text if area else said.get("value", ""))
    return fields


@dataclass
class Site:
    """A gateway with its console."""

    gateway: ThreadedGateway
    console: Console
    clock: Clock
    stack: AsyncExitStack
    ran: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def token(self, participant: str, space: str | None = None) -> str:
        return self.gateway.token(participant, space)

    async def browser(self, participant: str | None = None, space: str | None = None) -> Browser:
        client = httpx.AsyncClient(base_url=self.gateway.http_url, **ALONE)
        browser = Browser(await self.stack.enter_async_context(client), self.gateway.http_url)
        if participant is not None:
            assert (await browser.sign_in(self.token(participant, space))).status_code == 303
        return browser

    async def join(
        self, participant: str, agent: Agent | None = None, space: str = "demo"
    ) -> Space:
        joining = (agent or Agent(participant)).join(
            self.gateway.url, space=space, token=self.token(participant, space)
        )
        return await self.stack.enter_async_context(joining)

    async def post(self, participant: str, envelope: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {self.token(participant, 'demo')}"}
        path = f"/participants/{participant}/messages"
        async with httpx.AsyncClient(base_url=self.gateway.http_url, **ALONE) as client:
            answer = await client.post(path, json=envelope, headers=headers)
        assert answer.status_code in (200, 202), answer.text

    async def tools(self) -> Space:
        agent = Agent("tools")

        @agent.tool
        async def write_file(path: str, text: str = "") -> str:
            """Writes a file."""
            self.ran.append({"path": path, "text": text})
            return "written"

        @agent.tool
        async def send_report(
            to: str, copies: int, form: Literal["pdf", "text"] = "pdf", urgent: bool = False
        ) -> str:
            """Sends a report."""
            self.ran.append({"to": to, "copies": copies, "form": form, "urgent": urgent})
            return "sent"

        return await self.join("tools", agent)

    async def proposer(self) -> Space:
        """Let tools join, and who proposes their calls."""
        await self.tools()
        return await self.join("proposer")

    async def review(self, policy: str) -> None:
        """Let a reviewer with a policy join."""
        folder = self.stack.enter_context(TemporaryDirectory())
        file = Path(folder, "policy.yaml")
        await anyio.Path(file).write_text(policy)
        token = self.token("reviewer", "demo")
        joining = Reviewer(file).join(self.gateway.url, space="demo", token=token)
        await self.stack.enter_async_context(joining)

    async def asked(
        self, arguments: dict[str, Any] | None = None, who: str = "you", to: str = ""
    ) -> tuple[ProposalHandle, Browser, str, str]:
        """A proposal, the browser of who decides about it, the page there, and its key."""
        proposal = await self.propose(await self.proposer(), arguments, to=to)
        browser = await self.browser(who)
        page = await browser.page()
        return proposal, browser, page, key_in(page)

    async def propose(
        self,
        space: Space,
        arguments: dict[str, Any] | None = None,
        tool: str = "write_file",
        to: str = "",
    ) -> ProposalHandle:
        given = {"path": "a.md", "text": "hello"} if arguments is None else arguments
        proposal = space.propose("tools", tool, given, ttl=600, to=to or ())
        return await self.stack.enter_async_context(proposal)


def two_spaces() -> Config:
    """The space of the tests, and another one with a participant of the same name."""
    # However slow the machine is, no guess is forgiven while a test guesses.
    limits = GatewayLimits(failed_token_seconds=3_600.0)
    first = one_space_config("demo", PARTICIPANTS, limits)
    second = one_space_config("elsewhere", PARTICIPANTS)
    return replace(first, spaces=(*first.spaces, *second.spaces))


@asynccontextmanager
async def open_site(config: Config | None = None) -> AsyncGenerator[Site]:
    """A gateway with a console, for the length of a block."""
    clock = Clock()
    console = Console(clock)
    gateway = Gateway(config=config or two_spaces(), page=console)
    # In a thread of its own, so that it can be killed and begun again in the middle of a test.
    with patient(*WAITS), gateway.in_thread() as running, anyio.fail_after(3 * PATIENCE):
        async with AsyncExitStack() as stack:
            yield Site(running, console, clock, stack)


@pytest.fixture
async def site() -> AsyncGenerator[Site]:
    async with open_site() as opened:
        yield opened

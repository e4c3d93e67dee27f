"""Notices of a gateway that listens, at services on this machine."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from standardwebhooks import Webhook

from meup_agent import Agent, ProposalHandle, Reason, Space
from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, Gateway
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.gateway.reach.receiver import receive
from tests.gateways import (
    NotDelivered,
    NotifyTarget,
    find_addresses,
    make_services,
    one_space_config,
)
from tests.patience import PATIENCE

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

PARTICIPANTS: Mapping[str, list[dict[str, Any]]] = {
    "ann": [{"kind": "mcp/request"}, {"kind": "mcp/reject"}],
    "looker": [{"kind": "chat"}],
    "agent": [{"kind": "mcp/proposal"}],
    "tools": [],
}


def target(url: str, **options: Any) -> NotifyTarget:
    given: dict[str, Any] = {"secret": SECRET, "after": 0.0, "allow_private": True}
    return NotifyTarget(url=url, **{**given, **options})


def config(*targets: NotifyTarget) -> Config:
    return replace(one_space_config("demo", PARTICIPANTS), notify=targets)


class Site:
    def __init__(self, gateway: Gateway, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self._stack = stack

    async def join(self, name: str) -> Space:
        joining = Agent(name).join(self.gateway.url, space="demo", token=self.gateway.token(name))
        return await self._stack.enter_async_context(joining)

    async def propose(self, space: Space, tool: str = "write_file") -> ProposalHandle:
        proposing = space.propose("tools", tool, {"secret": "of the call"}, ttl=600)
        return await self._stack.enter_async_context(proposing)


@asynccontextmanager
async def site(*targets: NotifyTarget) -> AsyncGenerator[Site]:
    with anyio.fail_after(PATIENCE):
        async with Gateway(config=config(*targets)) as gateway, AsyncExitStack() as stack:
            yield Site(gateway, stack)


async def test_webhook_tells_what_waits_and_that_it_is_settled() -> None:
    async with receive() as receiver, site(target(receiver.url, link="https://a.example")) as at:
        agent, ann = await at.join("agent"), await at.join("ann")
        asked = await at.propose(agent, "[x](https://lies.example)")
        told = await receiver.take()
        body = Webhook(SECRET).verify(told.body, told.headers)
        assert body["type"] == "proposals.waiting"
        assert body["data"]["text"] == "agent: ·x··https···lies·example·"
        assert body["data"]["link"] == "https://a.example"
        assert [each["id"] for each in body["data"]["proposals"]] == [asked.id]
        assert b"of the call" not in told.body
        proposal = next(each for each in ann.proposals if each.id == asked.id)
        await ann.proposals.get(proposal.envelope).reject(Reason.DISAGREE)
        settled = await receiver.take()
        body = Webhook(SECRET).verify(settled.body, settled.headers)
        assert (body["type"], body["data"]["ends"]) == ("proposals.settled", {"rejected": 1})


async def test_no_end_is_told_where_it_is_not_wanted() -> None:
    async with receive() as receiver, site(target(receiver.url, settled=False)) as at:
        agent = await at.join("agent")
        first = await at.propose(agent)
        assert (await receiver.take()).data["type"] == "proposals.waiting"
        await first.withdraw()
        await at.join("ann")
        assert not receiver.received


async def test_only_what_waits_for_the_participant_is_told() -> None:
    async with receive() as first, receive() as second:
        targets = target(first.url, participant="looker"), target(second.url, participant="ann")
        async with site(*targets) as at:
            await at.propose(await at.join("agent"))
            assert (await second.take()).data["data"]["count"] == 1
            assert not first.received


async def test_one_that_gives_no_answer_holds_up_no_other_and_no_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with receive() as silent, receive() as good:
        silent.status = 0
        async with site(target(f"{silent.url}?token=hush"), target(good.url)) as at:
            agent = await at.join("agent")
            await at.propose(agent)
            await silent.take()
            await good.take()
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (302, "Location: http://127.0.0.1:9/\r\n", "redirect"),
        (500, "", "answered 500"),
        (410, "", "answered 410"),
    ],
)
async def test_a_refusal_is_logged_once_without_the_address(
    status: int, headers: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with receive() as receiver:
        receiver.status, receiver.headers = status, headers
        address = receiver.url.replace("//", "//name:hush@") + "/hush?token=hush"
        async with site(target(address)) as at:
            agent = await at.join("agent")
            await at.propose(agent)
            assert "hush" in (await receiver.take()).path
            while words not in caplog.text:
                await anyio.lowlevel.checkpoint()
            assert not receiver.received
    assert "hush" not in caplog.text
    assert caplog.text.count("no notice reaches the webhook at 127.0.0.1") == 1


async def test_a_private_address_is_not_asked_unless_that_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with receive() as receiver:
        address = receiver.url.replace("http://", "https://")
        async with site(target(address, allow_private=False)) as at:
            await at.propose(await at.join("agent"))
            while "private address" not in caplog.text:
                await anyio.lowlevel.checkpoint()
        assert not receiver.received


async def test_apprise_is_sent_both(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with receive() as receiver:
        address = receiver.url.replace("http://", "json://") + "?-token=hush"
        async with site(target(address, secret=None)) as at:
            agent = await at.join("agent")
            asked = await at.propose(agent, "delete")
            told = (await receiver.take()).data
            assert (told["title"], told["message"]) == (
                "1 call waits for a decision",
                "agent: delete",
            )
            await asked.withdraw()
            told = (await receiver.take()).data
            assert (told["title"], told["message"]) == ("Settled: 1 call", "1 withdrawn")
    assert "hush" not in caplog.text


async def test_apprise_follows_no_redirect_and_asks_no_private_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with receive() as receiver, receive() as other:
        receiver.status, receiver.headers = 302, f"Location: {other.url}\r\n"
        address = receiver.url.replace("http://", "json://")
        targets = target(address, secret=None), target(address, secret=None, allow_private=False)
        async with site(*targets) as at:
            await at.propose(await at.join("agent"))
            await receiver.take()
            while "did not take" not in caplog.text or "private address" not in caplog.text:
                await anyio.lowlevel.checkpoint()
            assert not receiver.received
            assert not other.received


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "nonsense://hush"}, "expected the https address"),
        ({"url": "https://"}, "expected the https address"),
        ({"url": "https://a.example:bad/hush"}, "expected the https address"),
        ({"url": "https://①.example/hush"}, "expected the https address"),
        ({"url": "https://a.example/\x01hush"}, "expected the https address"),
        ({"url": "http://a.example/hush"}, "could be read on its way"),
        ({"url": "https://a.example/hush", "secret": None}, "give secret_file"),
        ({"url": "https://a.example/hush", "secret": "hush"}, "24 bytes or more"),
        ({"url": "https://a.example/hush", "space": "other"}, "no such space"),
        ({"url": "https://a.example/hush", "participant": "nobody"}, "no such space"),
    ],
)
def test_a_target_that_cannot_be_is_one_sentence_without_its_address(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        make_services(config(target(**{"allow_private": False, **options})))
    assert str(raised.value).startswith("notify[0]")
    assert words in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    made = target("https://a.example", secret=None, secret_file=tmp_path / "hook")
    make_services(config(made))
    before = made.secret_file.read_text() if made.secret_file else ""
    make_services(config(made))
    assert made.secret_file is not None
    assert made.secret_file.read_text() == before
    assert before.startswith("whsec_")
    assert made.secret_file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fec0::1",
        "fe80::1",
        "ff0e::1",
    ],
)
async def test_what_is_no_address_of_the_internet_is_private(address: str) -> None:
    with pytest.raises(NotDelivered, match="private address"):
        await find_addresses(address, 443, allow_private=False)
    for public in ("8.8.8.8", "2606:4700::1"):
        assert await find_addresses(public, 443, allow_private=False) == [public]

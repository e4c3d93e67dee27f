"""Connections in the gateway's own process: how they end."""

import logging

import anyio
import anyio.lowlevel
import pytest

from meup_agent.errors import HandshakeRefused
from meup_agent.gateway import Gateway
from tests.gateway.conftest import envelope, hear
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.own_loop import running
from tests.gateways import Connector, Transport
from tests.patience import PATIENCE

MESSAGES = 40
"""So many of 8 KiB take several turns of the gateway's loop."""


def connector(gateway: Gateway) -> Connector:
    return gateway._gateway.connector("demo")


def headers(gateway: Gateway, participant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {gateway.token(participant)}"}


async def hear_chats(transport: Transport, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        async for frame in transport:
            count -= b'"chat"' in frame
            if not count:
                return


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_sent_before_the_end_is_heard(cancelled: bool) -> None:
    async with running() as gateway:
        dial = connector(gateway)
        async with dial(headers(gateway, "carol")) as carol, anyio.create_task_group() as tasks:
            tasks.start_soon(hear_chats, carol, MESSAGES)
            with anyio.CancelScope() as scope:
                async with dial(headers(gateway, "bob")) as bob:
                    await hear(bob, "system.welcome")
                    for number in range(MESSAGES):
                        words = {"text": "x" * 8192}
                        await bob.send(envelope("bob", payload=words, id=f"e{number}"))
                    if cancelled:
                        scope.cancel()
                        await anyio.sleep_forever()


async def test_end_of_one_that_does_not_read_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as gateway:
        dial = connector(gateway)
        async with dial(headers(gateway, "bob")) as bob:
            async with dial(headers(gateway, "carol")) as carol:
                await hear(carol, "system.welcome")
                for number in range(200):  # more than there is room for
                    await bob.send(envelope("bob", id=f"e{number}"))
                await hear_chats(bob, 200)
            with anyio.fail_after(PATIENCE):
                while "'carol' in 'demo': connection ended (code 1000)" not in caplog.messages:
                    await anyio.lowlevel.checkpoint()
    assert [each for each in caplog.records if each.levelno > logging.WARNING] == []


async def test_refusal_says_from_where(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running() as gateway:
        with pytest.raises(HandshakeRefused):
            async with connector(gateway)({"Authorization": "Bearer other"}):
                pass
    assert any("a handshake from this machine was refused" in each for each in caplog.messages)


async def test_one_that_the_gateway_does_not_read_may_leave() -> None:
    async with running() as gateway:
        dial = connector(gateway)
        async with dial(headers(gateway, "bob")) as bob:
            await hear(bob, "system.welcome")
            gateway._gateway.runtime.hold(True)
            await bob.send(envelope("bob"))
        with anyio.fail_after(PATIENCE):
            await gateway._gateway.runtime.wait_empty(PATIENCE)

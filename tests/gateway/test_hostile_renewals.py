"""Renewals from many at once: bounded for each, and unnoticed by the others."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection

from meup_agent.gateway import Gateway, GatewayLimits
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.test_attacks import dial, undisturbed
from tests.gateway.websocket_client import hear_until
from tests.patience import PATIENCE
from tests.wire import DEFAULT_DIALECT, draft, encode, kinds, payloads

HOSTILE = tuple(f"mallory{number}" for number in range(6))
RENEWALS = 20
"""Renewals that are accepted of one proposal here."""


def said(sender: str, id: str, kind: str, payload: dict[str, Any], *about: str) -> bytes:
    return encode(draft(kind, payload, id=id, sender=sender, correlation=about), DEFAULT_DIALECT)


def deadline(seconds: float) -> int:
    return round((datetime.now(UTC) + timedelta(seconds=seconds)).timestamp() * 1_000_000)


def proposed(sender: str, id: str) -> bytes:
    until = payloads.build_renewal(deadline(60))["expires_at"]
    params = {"name": "write", payloads.META: {payloads.EXPIRES_AT: until}}
    return said(sender, id, kinds.MCP_PROPOSAL, payloads.proposal("tools/call", params))


async def test_renewals_of_many_are_bounded_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.protocol.proposals.MAX_RENEWALS", RENEWALS)
    everyone = {name: [{"kind": "*"}] for name in (*HOSTILE, "bob")}
    limits = GatewayLimits(messages_per_second=10_000, max_queued_frames=20_000)
    async with Gateway(participants=everyone, limits=limits) as gateway, AsyncExitStack() as stack:
        flood = [await stack.enter_async_context(dial(gateway, name)) for name in HOSTILE]
        async with dial(gateway, "bob") as bob:
            refused_before = gateway.counters.refused["not_renewed"]

            async def renew(client: ClientConnection, sender: str) -> None:
                await client.send(proposed(sender, f"p-{sender}"))
                for number in range(3 * RENEWALS):
                    payload = payloads.build_renewal(deadline(100 + number))
                    id, about = f"{sender}-{number}", f"p-{sender}"
                    await client.send(said(sender, id, kinds.MCP_RENEW, payload, about))
                # And one of another's proposal.
                other = f"p-{HOSTILE[HOSTILE.index(sender) - 1]}"
                payload = payloads.build_renewal(deadline(500))
                await client.send(said(sender, f"{sender}-o", kinds.MCP_RENEW, payload, other))
                await client.send(said(sender, f"{sender}-end", kinds.CHAT, {"text": "done"}))

            async with anyio.create_task_group() as tasks:
                for client, sender in zip(flood, HOSTILE, strict=True):
                    tasks.start_soon(renew, client, sender)
                tasks.start_soon(undisturbed, bob)
            renewed = dict.fromkeys(HOSTILE, 0)
            ended: set[str] = set()
            async with dial(gateway, "bob") as again:
                await undisturbed(again)
            with anyio.fail_after(PATIENCE):
                for client, sender in zip(flood, HOSTILE, strict=True):
                    while sender not in ended:
                        heard = await hear_until(client, **{"from": sender})
                        renewed[sender] += heard["kind"] == "mcp.renew"
                        if heard["id"] == f"{sender}-end":
                            ended.add(sender)
            assert set(renewed.values()) == {RENEWALS}
            refused = gateway.counters.refused["not_renewed"] - refused_before
            # And perhaps those of another's proposal, where that was not made yet.
            most = 2 * RENEWALS * len(HOSTILE)
            assert most <= refused <= most + len(HOSTILE)

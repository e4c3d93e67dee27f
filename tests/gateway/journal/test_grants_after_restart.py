"""Operations on a space outlive the gateway's process, in a journal's file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent
from meup_agent.errors import Refused, TokenRefused
from meup_agent.gateway import Config, Gateway, JournalConfig
from tests.gateways import one_space_config, websocket_connector
from tests.patience import PATIENCE

CALL = {"kind": "mcp/request", "payload": {"method": "tools/call"}}


def config_with(path: Path) -> Config:
    participants: dict[str, list[dict[str, Any]]] = {
        "admin": [{"kind": "*"}],
        "worker": [{"kind": "mcp/proposal"}],
        "loud": [{"kind": "chat"}],
    }
    config = one_space_config("demo", participants, None)
    return replace(config, port=0, journal=JournalConfig(path))


@pytest.mark.rule("3.manage.restart")
async def test_grants_invitations_and_removals_outlive_the_gateway(path: Path) -> None:
    async with Gateway(config=config_with(path)) as gateway:
        url = gateway.url

        def join(name: str, token: str | None = None) -> Any:
            connector = websocket_connector(url, space="demo")
            return Agent(name).join(connector, token=token or gateway.token(name), participant=name)

        with anyio.fail_after(PATIENCE):
            async with join("admin") as admin:
                grant = await admin.members.grant("worker", [CALL])
                await admin.members.revoke("worker", [{"kind": "mcp/proposal"}])
                invitation = await admin.members.invite("guest", [{"kind": "chat"}])
                await admin.members.kick("loud")
                assert invitation.url == f"{url}/ws?space=demo"
        await gateway.restart()
        with anyio.fail_after(PATIENCE):
            async with join("worker") as worker:
                assert worker.may("mcp/request", CALL["payload"])
                assert not worker.may("mcp/proposal", {})
            async with join("guest", invitation.token) as guest:
                assert guest.may("chat", {})
            with pytest.raises(TokenRefused):
                await join("loud").__aenter__()
            async with join("admin") as admin:
                await admin.members.revoke("worker", grant=grant)
                with pytest.raises(Refused) as again:
                    await admin.members.revoke("worker", grant=grant)
                assert again.value.error == "unknown_grant"
            async with join("worker") as worker:
                assert not worker.may("mcp/request", CALL["payload"])
    written = b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())
    assert invitation.token
    assert invitation.token.encode() not in written
    assert b"guest" in written

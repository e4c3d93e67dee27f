"""Participants of a gateway that runs in a thread, and what they do there."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import anyio
import httpx

from meup_agent import Agent, Space
from meup_agent.gateway import ThreadedGateway
from tests.cli.processes import meup
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

T = TypeVar("T")


def variables_of(gateway: ThreadedGateway, name: str, **more: str) -> dict[str, str]:
    """The environment of a participant."""
    where = {"MEUP_URL": gateway.url, "MEUP_SPACE": "demo", "MEUP_TOKEN": gateway.token(name)}
    return where | more


def act_as(
    gateway: ThreadedGateway,
    name: str,
    act: Callable[[Space], Awaitable[T]],
    agent: Agent | None = None,
) -> T:
    """Join as a participant, and do something in the space, here and now."""

    async def join() -> T:
        joining = (agent or Agent(name)).join(gateway.url, space="demo", token=gateway.token(name))
        with anyio.fail_after(PATIENCE):
            async with joining as space:
                return await act(space)

    return anyio.run(join)


def post(gateway: ThreadedGateway, name: str, dialect: str = "", **envelope: Any) -> None:
    """Send an envelope over HTTP, under an id of one's own choice."""
    answer = httpx.post(
        f"{gateway.http_url}/participants/{name}/messages",
        headers={
            "Authorization": f"Bearer {gateway.token(name)}",
            **({"MEUP-Dialect": dialect} if dialect else {}),
        },
        json=envelope,
        verify=NO_TLS,
        timeout=PATIENCE,
    )
    assert answer.status_code == 200, answer.text


def variables_printed(
    *arguments: str, variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables that `meup env` sets."""
    done = meup("env", *arguments, variables=variables)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(re.findall(r"^export (MEUP_\w+)=(\S+)$", done.stdout, re.MULTILINE))

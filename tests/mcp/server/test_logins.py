"""Several tokens of one participant, and what the end of each does."""

from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel

from meup_agent.gateway import Config, Gateway, SpaceConfig
from tests.gateways import new_token, participant
from tests.mcp.conftest import ANYTHING, BOTH, ServedSpace, Stage, served, staged
from tests.mcp.server.test_cancellation import Session, session
from tests.mcp.server.test_identity import HELLO
from tests.patience import PATIENCE

PING = {"id": 1, "method": "ping"}


def config_with(*tokens: str) -> Config:
    """A space whose participant alice has these tokens."""
    alice = participant("alice", ANYTHING, tokens)
    return Config((SpaceConfig("demo", {"alice": alice}),))


async def until_status(client: Session, *wanted: int) -> None:
    """Ping until the answer has one of these statuses."""
    with anyio.fail_after(PATIENCE):
        while (await client.post(PING)).status_code not in wanted:
            await anyio.lowlevel.checkpoint()


async def test_two_tokens_of_a_participant_are_in_the_space_once() -> None:
    first, second = new_token(), new_token()
    async with Gateway(config=config_with(first, second)) as gateway, AsyncExitStack() as stack:
        async with (
            served(Stage(gateway, stack)) as server,
            session(server, token=first) as one,
            session(server, token=second) as other,
        ):
            for client in (one, other, one, other):
                assert (await client.post(PING)).status_code == 200
            swapped = other.taken_by(one.http)
            assert (await swapped.post(PING)).status_code == 404
            assert gateway.counters.taken_over == 0


async def test_tokens_that_come_at_once_are_in_the_space_once() -> None:
    tokens = [new_token() for _ in range(4)]
    async with Gateway(config=config_with(*tokens)) as gateway, AsyncExitStack() as stack:
        async with served(Stage(gateway, stack)) as server:
            statuses: list[int] = []

            async def hello(token: str) -> None:
                async with server.http(token) as http:
                    statuses.append(
                        (await http.post(server.url, json=HELLO, headers=BOTH)).status_code
                    )

            async with anyio.create_task_group() as tasks:
                for token in tokens * 2:
                    tasks.start_soon(hello, token)
            assert statuses == [200] * 8
            assert gateway.counters.taken_over == 0


async def test_a_second_token_that_is_revoked_ends_its_sessions_alone() -> None:
    first, second = new_token(), new_token()
    async with AsyncExitStack() as gateways, AsyncExitStack() as stack:
        gateway = await gateways.enter_async_context(Gateway(config=config_with(first, second)))
        stage = Stage(gateway, stack)
        async with (
            served(stage) as server,
            session(server, token=first) as one,
            session(server, token=second) as other,
        ):
            gateway.kill()
            port = gateway.port
            await gateways.aclose()
            stage.gateway = await gateways.enter_async_context(
                Gateway(config=config_with(first), port=port)
            )
            await until_status(other, 401)
            await until_status(one, 200)


async def opened_without_an_end(server: ServedSpace, token: str) -> str:
    """A session whose client has not ended the handshake."""
    async with server.http(token) as http:
        answer = await http.post(server.url, json=HELLO, headers=BOTH)
        return str(answer.headers["mcp-session-id"])


async def test_a_session_whose_handshake_has_not_ended_ends_with_its_token() -> None:
    async with staged(alice=ANYTHING, bob=ANYTHING, admin=ANYTHING) as stage:
        admin = await stage.join("admin")
        async with served(stage, own="alice") as server, server.http(stage.token("bob")) as http:
            opened = await opened_without_an_end(server, stage.token("bob"))
            request = http.build_request(
                "GET", server.url, headers={**BOTH, "mcp-session-id": opened}
            )
            stream = await http.send(request, stream=True)
            assert stream.status_code == 200
            await admin.members.kick("bob", reason="gone")
            await stream.aread()

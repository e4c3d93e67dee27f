"""A gateway that follows a space's log, 100,000 entries behind: it takes the space over, whole."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import nats
import pytest

from meup_agent.gateway import Gateway
from meup_agent.gateway.cluster.placement import NodeHeartbeat, preferred_owner
from meup_agent.gateway.cluster.signing import Signer
from meup_agent.gateway.config_file import load_config
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.gateway.cluster.test_forwarding import TOKEN
from tests.gateway.cluster.test_forwarding import ports as ports
from tests.gateway.cluster.test_spread import NAMES, says, spaces_of, write
from tests.gateway.cluster.test_spread import member as joined
from tests.gateway.conftest import envelope
from tests.gateway.journal.conftest import nats_config
from tests.gateway.journal.test_gateway import hear_chats
from tests.gateway.websocket_client import open_websocket
from tests.gateways import LAST_SEEN_HEADER, RESUME_HEADER
from tests.nats_logs import write_log
from tests.patience import patient

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

OWNER = NodeHeartbeat("owner", "x", "", "127.0.0.1:1")
_BOTH = [OWNER, NodeHeartbeat("here", "", "", "127.0.0.1:2")]
OLD, BEHIND = "old", 100_000
NEW = next(name for name in NAMES if preferred_owner(name, _BOTH) is not OWNER)
"""A space that is to be at the gateway which follows."""

ALICE = f"3c0f6d2be1a94758-alice-in-{OLD}"


async def until(condition: Any) -> None:
    with anyio.fail_after(200.0):
        while not condition():  # noqa: ASYNC110 - nobody is told of it
            await anyio.sleep(0.05)


async def test_it_takes_the_space_over_with_all_of_it(tmp_path: Path, ports: list[int]) -> None:
    """While it reads, it is there for its own spaces, and the log's owner keeps that until then."""
    place = nats_config(tmp_path)
    file = write(tmp_path, "here", ports, [OLD, NEW])
    await write_log(place, OLD, BEHIND, together=256)
    signer = Signer(TOKEN)
    owner = await nats.connect(place.servers[0])

    async def answer(message: Any) -> None:
        await owner.publish(message.reply, signer.sign(b"\x80", message.data))

    config = load_config(file)
    with patient("meup_agent.gateway.cluster.membership.SILENT_SECONDS"):
        async with anyio.create_task_group() as tasks:

            async def beat() -> None:
                # The log's owner, which is about to end.
                OWNER.spaces[OLD] = 1
                while True:
                    said = signer.sign(msgspec.msgpack.encode(OWNER))
                    await owner.publish(f"{place.prefix}.beat", said)
                    await anyio.sleep(0.1)

            asked = await owner.subscribe(f"{place.prefix}.ask.x", cb=answer)
            tasks.start_soon(beat)
            async with Gateway(config=config, port=config.port) as gateway:
                keeper: Any = gateway._gateway.keeper
                mine = keeper.membership
                await until(lambda: spaces_of(gateway) == {NEW})
                async with joined(config.port, NEW) as alice:
                    number = 0
                    while OLD not in mine.nodes[mine.nonce].follows:
                        number += 1
                        await says(alice, number)
                    assert number > 10  # it came round all the time
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await asked.unsubscribe()
                    await until(lambda: OLD in spaces_of(gateway))
                    last = keeper._owned[OLD].latest(OLD)
                    headers = {RESUME_HEADER: "1", LAST_SEEN_HEADER: str(last - 3)}
                    url = f"ws://127.0.0.1:{config.port}/ws?space={OLD}"
                    async with open_websocket(url, ALICE, headers=headers) as alice:
                        await alice.send(envelope("alice", id="new"))
                        heard = [each["id"] for each in await hear_chats(alice, 4)]
                    ends = [f"of-before-1-{BEHIND - back}" for back in (3, 2, 1)]
                    assert heard == [*ends, "new"]
    await owner.close()

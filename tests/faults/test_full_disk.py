"""A gateway whose disk is full says so, accepts nothing more, and ends."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.exceptions import ConnectionClosed

from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.commands import exit_codes
from tests.faults.gateways import free_port, gateway, space_yaml
from tests.gateway.websocket_client import open_websocket
from tests.gateways import RESUME_HEADER
from tests.journal_files import kept_ids
from tests.patience import PATIENCE

ROOM = 1_000_000
"""Bytes that a file of the gateway may have: the system refuses what is beyond."""


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process as Linux does")
async def test_what_could_not_be_kept_is_not_accepted(tmp_path: Path) -> None:
    import resource

    file, port = space_yaml(tmp_path, ("alice",)), free_port()
    accepted: list[str] = []
    one_is_accepted = anyio.Event()
    with gateway(file, port) as process:
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (ROOM, ROOM))
        url = f"ws://127.0.0.1:{port}/ws?space=demo"
        async with open_websocket(url, "alice", headers={RESUME_HEADER: "1"}) as alice:

            async def hear() -> None:
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        said: dict[str, Any] = json.loads(await alice.recv())
                        if said["kind"] == "chat":
                            accepted.append(said["id"])
                            one_is_accepted.set()

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(hear)
                    header = {"protocol": "meup/v0.1", "from": "alice", "kind": "chat"}
                    with contextlib.suppress(ConnectionClosed):
                        for number in range(10_000):
                            payload = {"message": "x" * 1_000}
                            await alice.send(
                                json.dumps({**header, "id": str(number), "payload": payload})
                            )
                            # Or all could be written at once, which leaves room for none of them.
                            await one_is_accepted.wait()
            assert alice.close_code == 1012
        assert process.end() == exit_codes.FAILED
    assert "Traceback" not in process.err
    assert f"the journal {tmp_path / 'journal.db'} cannot be written: " in process.err
    assert 0 < len(accepted) < 10_000
    assert accepted == kept_ids(tmp_path / "journal.db", "chat")

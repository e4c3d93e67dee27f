"""The worker and its supervisor, and the tool that thinks aloud, at a gateway."""

from importlib import import_module
from typing import Any

import anyio
import pytest

from meup_agent import Agent
from meup_agent.errors import RemoteShutdown
from meup_agent.gateway import Gateway
from tests.patience import PATIENCE

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "supervisor": [{"kind": "participant/*"}, {"kind": "mcp/*"}],
    "tools": [],
    "thinker": [{"kind": "reasoning/*"}],
}


def example(file: str) -> Any:
    """The module of an example."""
    return import_module(f"examples.{file.removesuffix('.py')}")


async def test_supervisor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker, supervisor = example("controlled_worker.py"), example("supervisor.py")
    worker.context.clear()
    with Gateway(participants=PARTICIPANTS).in_thread() as gateway, anyio.fail_after(PATIENCE):
        monkeypatch.setenv("MEUP_URL", gateway.url)
        monkeypatch.setenv("MEUP_SPACE", "demo")
        monkeypatch.setenv("MEUP_TOKEN", gateway.token("supervisor"))
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                with pytest.raises(RemoteShutdown):
                    async with worker.agent.join(gateway.url, token=gateway.token("tools")):
                        await anyio.sleep_forever()

            tasks.start_soon(work)
            await supervisor.main()
    assert capsys.readouterr().out.splitlines() == [
        "active, with 3 notes",
        "paused by supervisor: a look at it",
        "while it is paused: busy: paused for now",
        "freed 2 of them",
        "shut down by supervisor",
    ]


async def test_thinker_thinks_aloud() -> None:
    thinker = example("thinker.py")
    with Gateway(participants=PARTICIPANTS).in_thread() as gateway, anyio.fail_after(PATIENCE):
        async with (
            thinker.agent.join(gateway.url, space="demo", token=gateway.token("thinker")),
            Agent("x").join(gateway.url, space="demo", token=gateway.token("supervisor")) as space,
        ):
            with space.watch(lambda each: each.kind.startswith("reasoning/")) as thoughts:
                assert await space.call("thinker", "oldest", {"names": ["b", "a"]}) == "a"
                said = [(await anext(thoughts)).payload["message"] for _ in range(4)]
    assert said == [
        "which of them is the oldest?",
        "b may be older than b",
        "a may be older than b",
        "it is a",
    ]

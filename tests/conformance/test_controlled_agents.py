"""Their participants control agents of ours, and ours theirs, in the envelopes of the captures."""

from collections.abc import Generator
from typing import Any

import anyio
import pytest
from anyio import to_thread

from meup_agent import Agent, Chat, Context, Settings
from meup_agent.gateway import ThreadedGateway
from tests.conformance.wire import V01, V04, Json, Site, Wire, serving
from tests.patience import PATIENCE

MAY: dict[str, list[Json]] = {
    "tester": [{"kind": kind} for kind in ("participant/*", "mcp/*", "chat", "chat/*")],
    "slow": [{"kind": kind} for kind in ("mcp/*", "chat", "chat/*", "reasoning/*")],
}


@pytest.fixture
def gateway() -> Generator[ThreadedGateway]:
    with serving(MAY, dialect=V04) as running:
        yield running


def answers(tester: Wire, kind: str, payload: Json, last: str) -> list[tuple[str, Any]]:
    """Send a control message; the answers of the agent, until one says the last word."""
    sent = tester.send(f"participant/{kind}", payload, to=["slow"])
    heard: list[tuple[str, Any]] = []
    while not heard or last not in heard[-1]:
        said = tester.hear_any()
        if said["from"] == "slow" and said.get("correlation_id") == [sent]:
            assert said["to"] == ["tester"]
            word = said["payload"].get("status", said["payload"].get("reason"))
            heard.append((said["kind"].removeprefix("participant/"), word))
            if said["kind"] == "participant/status":
                assert isinstance(said["payload"]["messages_in_context"], int)
    return heard


@pytest.mark.parametrize("speaks", [V01, V04])
@pytest.mark.rule("5.control.paused", "5.control.status", "5.control.memory", "C.W27")
async def test_their_terminal_controls_our_agent(gateway: ThreadedGateway, speaks: str) -> None:
    agent = Agent("slow")

    @agent.on_chat
    async def chat(chat: Chat, ctx: Context) -> None:
        async with ctx.reasoning("what is meant?") as reasoning:
            await reasoning.conclude("a greeting")

    def control() -> None:
        # In the order of the captures, and with their words.
        assert answers(tester, "request-status", {}, "active") == [("status", "active")]
        said = answers(tester, "pause", {"reason": "x", "timeout_seconds": 0.2}, "timeout")
        assert said == [("status", "paused"), ("status", "active"), ("resume", "timeout")]
        said = answers(tester, "compact", {}, "compacted")
        assert said == [("compact-done", "skipped"), ("status", "compacted")]
        for kind, word in (("clear", "cleared"), ("restart", "restarted")):
            assert answers(tester, kind, {}, word) == [("status", word)]
        sent = tester.send("chat", {"text": "hello", "format": "plain"}, to=["slow"])
        acknowledged = tester.until("chat/acknowledge")
        assert acknowledged["correlation_id"] == [sent]
        start, end = tester.until("reasoning/start"), tester.until("reasoning/conclusion")
        assert (start["correlation_id"], end["context"]) == ([sent], start["id"])
        assert answers(tester, "shutdown", {}, "shutting_down") == [("status", "shutting_down")]
        gone = tester.until("system/presence")["payload"]
        assert (gone["event"], gone["participant"]["id"]) == ("leave", "slow")

    with Site(gateway, V04).join("tester") as (tester,), anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                options: dict[str, Any] = {"token": "slow-token", "space": "demo"}
                options["settings"] = Settings(dialect=speaks)
                with pytest.raises(Exception, match="shut this participant down"):
                    async with agent.join(gateway.url, **options):
                        await anyio.sleep_forever()

            tasks.start_soon(serve)
            await to_thread.run_sync(tester.until, "system/presence")
            await to_thread.run_sync(control)


@pytest.mark.rule("5.control.status", "5.control.memory", "C.W27")
async def test_our_supervisor_controls_their_agent(gateway: ThreadedGateway) -> None:
    status = {"tokens": 12, "max_tokens": 20000, "messages_in_context": 4}

    def answer(kind: str, *said: tuple[str, Json]) -> None:
        asked = slow.until(f"participant/{kind}")
        assert asked["to"] == ["slow"]
        for answered, payload in said:
            to = [] if answered == "status" else ["tester"]  # as theirs: a status is for all
            header = {"to": to} if to else {}
            slow.send(f"participant/{answered}", payload, correlation_id=[asked["id"]], **header)

    with Site(gateway, V04).join("slow") as (slow,), anyio.fail_after(PATIENCE):
        async with Agent("tester").join(gateway.url, token="tester-token", space="demo") as boss:

            async def answering(kind: str, *said: tuple[str, Json]) -> None:
                await to_thread.run_sync(lambda: answer(kind, *said))

            async with anyio.create_task_group() as tasks:
                said = ("status", {**status, "status": "active"})
                tasks.start_soon(answering, "request-status", said)
                told = await boss.control.request_status("slow")
                assert (told.status, told.fields["tokens"]) == ("active", 12)
            async with anyio.create_task_group() as tasks:
                done = ("compact-done", {"skipped": True, "status": "skipped"})
                said = ("status", {**status, "status": "compacting"})
                tasks.start_soon(answering, "compact", said, done)
                compacted = await boss.control.compact("slow")
                assert compacted.skipped
            pause = await boss.control.pause("slow", reason="x", timeout=3600)
            heard = await to_thread.run_sync(slow.until, "participant/pause")
            assert heard["id"] == pause.id
            assert heard["payload"] == {"reason": "x", "timeout_seconds": 3600}
            await boss.control.resume("slow", pause=pause)
            resumed = await to_thread.run_sync(slow.until, "participant/resume")
            assert resumed["correlation_id"] == [pause.id]

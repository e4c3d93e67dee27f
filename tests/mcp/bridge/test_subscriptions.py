"""Subscriptions to resources of an older server, which is told of each resource once."""

import json

import pytest

from meup_agent import Space
from meup_agent.errors import RequestError
from tests.mcp.bridge.stage import BRIDGE, LogLines, bridged, stdio

UPDATED = "notifications/resources/updated"


async def updated(space: Space, uri: str) -> tuple[str, ...]:
    """The addressees of the next news of a resource."""
    with space.watch() as envelopes:
        await space.request(BRIDGE, "resources/subscribe", {"uri": uri})
        async for envelope in envelopes:
            if envelope.payload_object.get("method") == UPDATED:
                assert envelope.payload_object["params"] == {"uri": uri}
                return envelope.to
    raise AssertionError("the space has ended")


async def test_news_go_to_those_that_watch(log_lines: LogLines) -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        caller = stage.caller
        assert await updated(caller, "note://a") == ("caller",)
        async with stage.joined("other") as other:
            await other.request(BRIDGE, "resources/subscribe", {"uri": "note://a"})
            assert await updated(other, "note://b") == ("other",)
            await caller.request(BRIDGE, "resources/unsubscribe", {"uri": "note://a"})
        # It has left, and nothing is left to watch.
        for uri in ("note://a", "note://b"):
            await log_lines.wait_for(f'"resources/unsubscribe","params":{{"uri":"{uri}"}}')
        told = [
            (message["method"].partition("/")[2], message["params"]["uri"])
            for line in log_lines.with_text('"method":"resources/')
            for message in [json.loads(line.partition(": got ")[2])]
        ]
        assert sorted(told) == [
            ("subscribe", "note://a"),
            ("subscribe", "note://b"),
            ("unsubscribe", "note://a"),
            ("unsubscribe", "note://b"),
        ]


async def test_what_is_watched_is_watched_again_after_a_crash(log_lines: LogLines) -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        caller = stage.caller
        assert await updated(caller, "note://a") == ("caller",)
        with caller.watch() as envelopes:
            with pytest.raises(RequestError):
                await caller.offers.read_resource(BRIDGE, "any")
            async for envelope in envelopes:
                if envelope.payload_object.get("method") == UPDATED:
                    break
        await log_lines.wait_for('"resources/subscribe"', 2)


async def test_a_subscription_needs_a_uri() -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        with pytest.raises(RequestError, match="needs the URI of a resource"):
            await stage.caller.request(BRIDGE, "resources/subscribe", {})

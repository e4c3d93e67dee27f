"""Yes in advance at the inbox's screen: `y` offers, `y` gives, `Y` lists, a digit ends one."""

from pathlib import Path

import pytest

from meup_agent import Fulfillment
from tests.cli.commands import ScreenQuestion
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.cli.inbox.people import desk


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("rules: [{ask: {tool: '*'}}]\nend: true\n")
    return path


@pytest.mark.thorough
async def test_ten_after_the_first_take_two_keys(policy: Path) -> None:
    async with desk(policy=policy, size=(100, 40)) as d:
        async with d.proposer.propose("tools", "read", {"path": "d/0"}, ttl=600) as first:
            await d.arrived()
            await d.press("a")
            assert isinstance(await first.outcome(), Fulfillment)
        async with d.proposer.propose("tools", "read", {"path": "d/1"}, ttl=600) as second:
            await d.arrived()
            await d.until(lambda: d.inbox.uses_yeses)
            d.pressed = 0
            await d.press("y")
            await d.until(lambda: d.asks(ScreenQuestion.YES))
            card = d.text("#card")
            assert "▌2 path in the same folder" in card
            assert "path: d/*" in card
            assert "takes 1 of 1 other calls that are known" in card
            assert "for 1 h at most 20 calls like it" in d.text("#ask")
            await d.press("y")
            assert isinstance(await second.outcome(), Fulfillment)
        for number in range(2, 11):
            async with d.proposer.propose("tools", "read", {"path": f"d/{number}"}, ttl=600) as p:
                assert isinstance(await p.outcome(), Fulfillment)
        assert d.pressed == 2
        await d.press("Y")
        await d.until(lambda: d.asks(ScreenQuestion.YESES))
        assert "9 of 20 used" in d.text("#card")
        await d.press("1")
        await d.until(lambda: "has ended" in d.text("#note"))
        assert await d.inbox.yeses() == []


async def test_keys_change_scope_time_and_number_and_another_key_goes_back(policy: Path) -> None:
    edited = '{"arguments": {"path": "**/1"}, "others": []}'

    async def edit(text: str) -> str:
        assert '"path"' in text
        return edited

    async with (
        desk(policy=policy, size=(100, 40), edit=edit) as d,
        d.proposer.propose("tools", "read", {"path": "d/1"}, ttl=600) as proposal,
    ):
        await d.arrived()
        await d.press("y")
        await d.until(lambda: d.asks(ScreenQuestion.YES))
        await d.press("3", "h", "n")
        assert "path: d/**" in d.text("#card")
        assert "for 8 h at most 100 calls like it" in d.text("#ask")
        await d.press("e")
        await d.until(lambda: "path: **/1" in d.text("#card"))
        await d.press("x")
        assert d.asks(ScreenQuestion.NOTHING)
        assert 'path: "d/1"' in d.text("#card")
        assert await d.inbox.yeses() == []
        await d.press("y")
        await d.until(lambda: d.asks(ScreenQuestion.YES))
        edited = '{"arguments": {"path": "e/*"}}'
        await d.press("e")
        await d.until(lambda: "does not take this call" in d.text("#note"))
        edited = '{"arguments": {"path": "/(/"}}'
        await d.press("e")
        await d.until(lambda: "do not compile" in d.text("#note"))
        assert proposal.state.is_pending
